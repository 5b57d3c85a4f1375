"""Oracles: a real run's weights, and torch's border with its devices, mocked."""

import pytest
import torch

from onsight.config import make_config
from onsight.data.views import Normalization
from onsight.errors import ConfigError, NonFiniteLoss
from onsight.explain.candidates import Candidate
from onsight.explain.loop import Loop, measure_seconds
from onsight.explain.pictures import open_pictures
from onsight.models.file import load_model_file
from onsight.report.console import Silence
from onsight.training.build import make_normalization
from onsight.training.run import train

CPU = torch.device("cpu")
WHOLE = {"validation_fraction": 0.0, "test_fraction": 0.0, "schedule": "constant"}


def make_loop(bars, **fields):
    config = make_config({"learning_rate": 0.01} | WHOLE | fields)
    dataset = open_pictures(str(bars), config, Silence())
    normalization = make_normalization(config, dataset.pictures, dataset)
    return Loop(Candidate("1 thread", CPU, 1, "fp32"), config, dataset, normalization)


def test_its_steps_are_those_of_a_run(bars, tmp_path):
    loop = make_loop(bars)
    assert len(loop.ids) == 120
    loop.at(20)(12)
    fields = WHOLE | {"learning_rate": 0.01, "threads": 1}
    run = train(bars, out=tmp_path / "run", story=Silence(), epochs=2, batch_size=20, **fields)
    trained = load_model_file(run.path).weights
    for name, tensor in loop.step.model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name


def test_pictures_lie_where_a_run_on_that_device_would_keep_them(bars, monkeypatch):
    from onsight.explain import loop

    plans = []
    monkeypatch.setattr(loop, "place_pictures", lambda data, plan: plans.append(plan))
    monkeypatch.setattr(loop, "make_net", lambda config, dataset, device: torch.nn.Linear(1, 1))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 10**9))
    make_loop(bars)
    config = make_config({"learning_rate": 0.01})
    dataset = open_pictures(str(bars), config, Silence())
    gpu = torch.device("cuda:0")
    monkeypatch.setattr(loop, "make_step", lambda *_: None)
    Loop(Candidate("cuda:0", gpu, 1, "bf16"), config, dataset, Normalization((0.5,), (0.5,)))
    assert [plan["pictures"].value for plan in plans] == ["memory map", "device"]
    assert plans[1]["device"].value == gpu


def test_every_batch_is_full(bars):
    loop = make_loop(bars, test_fraction=0.1)
    pictures = len(loop.ids)
    for size in (7, pictures - 1, pictures):
        batches = loop._batches(size)
        assert {len(next(batches)[1].ids) for _ in range(3 * (pictures // size))} == {size}


def test_threads_are_set_for_the_work_and_put_back_even_if_it_fails():
    former = torch.get_num_threads()
    seen = []
    candidate = Candidate("3 threads", CPU, former + 2, "fp32")
    measure_seconds(lambda: seen.append(torch.get_num_threads()), candidate)
    assert (seen, torch.get_num_threads()) == ([former + 2], former)
    with pytest.raises(ZeroDivisionError):
        measure_seconds(lambda: 1 / 0, candidate)
    assert torch.get_num_threads() == former


def test_the_device_is_waited_for_before_each_reading_of_the_clock(monkeypatch):
    from onsight.explain import loop

    events = []
    gpu = torch.device("cuda:1")
    monkeypatch.setattr(torch.accelerator, "synchronize", events.append)
    monkeypatch.setattr(loop.time, "perf_counter", lambda: events.append("clock") or len(events))
    seconds = measure_seconds(lambda: events.append("work"), Candidate("cuda:1", gpu, 1, "fp32"))
    assert events == [gpu, "clock", "work", gpu, "clock"]
    assert seconds == 3
    events.clear()
    measure_seconds(lambda: events.append("work"), Candidate("cpu", CPU, 1, "fp32"))
    assert events == ["clock", "work", "clock"]


def test_a_batch_too_small_for_batch_norm_names_the_remedy(bars):
    loop = make_loop(bars, accumulate=4, image_size="8")
    with pytest.raises(ConfigError, match="leave that size out of --batch-sizes"):
        loop.at(4)(1)


def test_a_loss_that_is_not_finite_names_the_remedy(bars):
    loop = make_loop(bars, optimizer="sgd", learning_rate=1e30, model="linear")
    with pytest.raises(NonFiniteLoss, match="try a lower --learning-rate"):
        loop.at(8)(50)


def test_the_moving_average_is_part_of_the_step(bars):
    loop = make_loop(bars, ema=0.9)
    before = {name: tensor.clone() for name, tensor in loop.average.model.state_dict().items()}
    loop.at(8)(2)
    after = loop.average.model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
