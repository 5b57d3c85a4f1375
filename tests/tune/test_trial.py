"""Oracles: a real run's weights, and torch's interface to devices, mocked."""

import pytest
import torch
from prepared import make_prepared

from onsight.errors import ConfigError, NonFiniteLoss
from onsight.models.file import load_model_file
from onsight.report.console import SilentReporter
from onsight.step import timing
from onsight.step.deferred_losses import NonFiniteStepError
from onsight.step.timing import measure_seconds
from onsight.training.run import train
from onsight.tune.trial import Trial

CPU = torch.device("cpu")
WHOLE = {"validation_fraction": 0.0, "test_fraction": 0.0, "schedule": "constant"}


def make_trial(bars, **fields):
    fixed = {"learning_rate": 0.01, "precision": "fp32", "threads": 1}
    return Trial(*make_prepared(bars, **(fixed | WHOLE | fields)))


def test_a_trial_makes_the_same_steps_as_a_run(bars, tmp_path):
    trial = make_trial(bars)
    assert len(trial.ids) == 120
    trial.timer(20)(12)
    fields = WHOLE | {"learning_rate": 0.01, "threads": 1, "model": "compact"}
    fields |= {"recalibrate_norm": "off"}
    run = train(
        bars, out=tmp_path / "run", reporter=SilentReporter(), epochs=2, batch_size=20, **fields
    )
    trained = load_model_file(run.path).weights
    for name, tensor in trial.step.model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name


def test_every_batch_is_full(bars):
    trial = make_trial(bars, test_fraction=0.1)
    images = len(trial.ids)
    for size in (7, images - 1, images):
        batches = trial._batches(size)
        assert {len(next(batches)[2].ids) for _ in range(3 * (images // size))} == {size}


def test_threads_are_set_for_the_work_and_restored_even_if_it_fails():
    former = torch.get_num_threads()
    seen = []
    measure_seconds(lambda: seen.append(torch.get_num_threads()), former + 2, CPU)
    assert (seen, torch.get_num_threads()) == ([former + 2], former)
    with pytest.raises(ZeroDivisionError):
        measure_seconds(lambda: 1 / 0, former + 2, CPU)
    assert torch.get_num_threads() == former


def test_the_device_is_synchronized_before_each_reading_of_the_clock(monkeypatch):
    events = []
    gpu = torch.device("cuda:1")
    monkeypatch.setattr(torch.accelerator, "synchronize", events.append)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: events.append("clock") or len(events))
    seconds = measure_seconds(lambda: events.append("work"), 1, gpu)
    assert events == [gpu, "clock", "work", gpu, "clock"]
    assert seconds == 3
    events.clear()
    measure_seconds(lambda: events.append("work"), 1, CPU)
    assert events == ["clock", "work", "clock"]


def test_a_batch_too_small_for_batch_norm_names_the_remedy(bars):
    trial = make_trial(bars, accumulate=4, image_size="8")
    with pytest.raises(ConfigError, match="--batch-sizes"):
        trial.timer(4)(1)


def test_a_loss_that_is_not_finite_names_the_remedy(bars):
    trial = make_trial(bars, optimizer="sgd", learning_rate=1e30, model="linear")
    with pytest.raises(NonFiniteLoss, match="try a lower --learning-rate"):
        trial.timer(8)(50)


def test_a_batch_that_does_not_fit_does_not_change_how_smaller_ones_are_computed(bars):
    trial = make_trial(bars, model="linear")
    computed = []

    def fill(net, given):
        computed.append(len(given[0]))
        if len(given[0]) > 8:
            raise torch.OutOfMemoryError("out of memory")

    trial.step.model.register_forward_pre_hook(fill)
    with pytest.raises(torch.OutOfMemoryError, match="in parts"):
        trial.timer(16)(1)
    trial.timer(8)(2)
    assert computed == [16, 8, 8]


def test_a_loss_that_is_read_late_and_is_not_finite_names_the_remedy_too(bars, monkeypatch):
    trial = make_trial(bars, model="linear")

    def flush():
        raise NonFiniteStepError(float("nan"), 2)

    monkeypatch.setattr(trial.step, "flush", flush)
    with pytest.raises(NonFiniteLoss, match="nan .* try a lower --learning-rate"):
        trial.flush()


def test_the_moving_average_is_part_of_the_step(bars):
    trial = make_trial(bars, ema=0.9)
    average = trial.update.average.model
    before = {name: tensor.clone() for name, tensor in average.state_dict().items()}
    trial.timer(8)(2)
    after = average.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
