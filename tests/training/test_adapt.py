"""A plan whose speed is off is measured again, and the run can still be repeated bit for bit."""

import json
import tomllib

import pytest
import torch

from onsight.config import Switch, make_config
from onsight.report.console import Reporter, SilentReporter
from onsight.tensorfile import read_tensors
from onsight.training.autotune import adapt, planning, probe
from onsight.training.autotune.adapt import SpeedWatch
from onsight.training.autotune.compute_options import ComputeOptions
from onsight.training.autotune.probe import Measured
from onsight.training.run import train

FIELDS = {"learning_rate": 0.01, "model": "lenet", "image_size": "32", "batch_size": 16}


def after(watch, rate, seconds, images=0, begun=0.0):
    """The watch after some seconds at a rate, with five updates per second."""
    for tick in range(1, round(5 * seconds) + 1):
        watch.see(images + round(rate * tick / 5), begun + tick / 5)
    return watch


@pytest.mark.parametrize(
    ("rate", "seconds", "off"),
    [
        (1000, 60, False),
        (750, 60, False),
        (1350, 60, False),
        (690, 60, True),
        (1450, 60, True),
        (100, 16, False),  # 2 s of warm-up, and then not yet 15 s
        (100, 18, True),
    ],
)
def test_a_speed_is_off_only_by_a_large_factor_over_a_whole_window(rate, seconds, off):
    assert after(SpeedWatch(1000.0), rate, seconds).is_off == off


def test_only_the_last_window_counts():
    watch = after(SpeedWatch(1000.0), 100, 20)
    assert watch.is_off
    assert not after(watch, 1000, 40, images=2000, begun=20.0).is_off
    watch.expect(500.0)
    assert not watch.is_off


@pytest.fixture(autouse=True)
def load(monkeypatch):
    """A machine that is quiet, whatever else runs beside the tests, until it is set busy."""
    state = {"busy": False}
    for module in (adapt, planning):
        monkeypatch.setattr(module, "is_busy", lambda: state["busy"])
    return state


@pytest.mark.parametrize(
    ("first", "then", "again"), [(True, False, 1), (False, True, 1), (True, True, 0)]
)
def test_a_load_that_has_changed_is_a_reason_to_measure_again(
    load, monkeypatch, first, then, again
):
    one, other = (
        ComputeOptions("fp32", "auto", 1, "off", 1),
        ComputeOptions("fp32", "auto", 2, "off", 1),
    )
    measured = []

    def measure(self, most_seconds):
        measured.append(self)
        return Measured(other, {other: 0.01, one: 0.02})

    monkeypatch.setattr(adapt.Adaptation, "_measure", measure)
    monkeypatch.setattr(adapt.Adaptation, "_forget_kept_plan", lambda self: None)
    load["busy"] = first
    config = make_config(FIELDS)
    adaptation = adapt.Adaptation(config, one, 1000.0, None, SilentReporter())
    load["busy"] = then
    assert adaptation.after_epoch(1) is None  # too soon
    adaptation.noted_at -= 20.0
    assert adaptation.after_epoch(2) == (other if again else None)
    assert len(measured) == again
    assert adaptation.after_epoch(3) is None  # what was found fits the load of now


def test_measuring_again_that_fails_does_not_end_the_run(load, monkeypatch, capsys):
    def fail(self, most_seconds):
        raise torch.OutOfMemoryError("no memory for a second network\nlong story")

    monkeypatch.setattr(adapt.Adaptation, "_measure", fail)
    one = ComputeOptions("fp32", "auto", 1, "off", 1)
    adaptation = adapt.Adaptation(make_config(FIELDS), one, 1000.0, None, Reporter())
    adaptation.watch.observed = 100.0
    assert adaptation.after_epoch(1) is None
    assert "not measured again: no memory for a second network\n" in capsys.readouterr().err
    assert not adaptation.watch.is_off  # and it is not tried after every epoch


def test_a_kept_plan_survives_a_busy_moment(load, monkeypatch):
    one, other = (ComputeOptions("fp32", "auto", threads, "off", 1) for threads in (2, 1))
    forgotten = []
    found = Measured(other, {other: 0.01})
    monkeypatch.setattr(adapt.Adaptation, "_measure", lambda self, most_seconds: found)
    monkeypatch.setattr(adapt.Adaptation, "_forget_kept_plan", forgotten.append)
    adaptation = adapt.Adaptation(make_config(FIELDS), one, 1000.0, None, SilentReporter())
    adaptation.watch.observed = 100.0
    load["busy"] = True
    assert adaptation.after_epoch(1) == other
    assert not forgotten


@pytest.fixture
def planted(monkeypatch):
    """A measured run whose speed is off in its second epoch, and the options that win then."""
    monkeypatch.setattr(planning, "_WORTH_SECONDS", 0.0)
    first = ComputeOptions("fp32", "auto", 2, "off", 1)
    other = ComputeOptions("bf16", "auto", 1, "off", 1)
    winners = [first, other]

    def measure(self, stages, default, most_seconds):
        chosen = winners.pop(0) if winners else default
        return Measured(chosen, {first: 0.01, other: 0.02, default: 0.01})

    monkeypatch.setattr(probe.Probe, "measure", measure)
    monkeypatch.setattr("onsight.training.autotune.compute_options.usable_cores", lambda: 2)

    def see(self, images, seconds):
        self.observed = 0.5 * self.expected if images > 150 else self.expected

    monkeypatch.setattr(SpeedWatch, "see", see)
    return first, other


def weights_of(run):
    return read_tensors(run.path / "checkpoints" / "best.safetensors")[0]


def test_a_switch_is_reported_recorded_and_repeated_bit_for_bit(bars, tmp_path, planted, capsys):
    kept = tmp_path / "cache"
    fields = FIELDS | {"epochs": 4, "cache_folder": str(kept), "validation_fraction": 0.0}
    run = train(bars, out=tmp_path / "run", reporter=Reporter(), **fields)
    printed = capsys.readouterr().err
    assert "less than the" in printed
    assert "plan: bf16, 1 thread from now on" in printed
    saved = tomllib.loads((run.path / "config.toml").read_text())
    (switch,) = saved["switches"]
    options = {"precision": "bf16", "threads": 1, "accumulate": 1}
    assert switch == {"fold": 0, "epoch": 2, "step": 0} | options
    (planned,) = json.loads((run.path / "plan.json").read_text())["switches"]
    assert planned["value"] == switch
    assert run.results["epochs"] == 4
    assert not list((kept / "plans").iterdir())  # no later run starts with what was too slow

    again = {"config_file": run.path / "config.toml", "reporter": SilentReporter()}
    repeated = train(bars, out=tmp_path / "again", **again)
    one, other = weights_of(run), weights_of(repeated)
    assert all(torch.equal(one[name], other[name]) for name in one)

    plain = train(bars, out=tmp_path / "plain", switches=(), **again)
    other = weights_of(plain)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_a_switch_in_the_middle_of_an_epoch_is_made_at_its_step(bars, tmp_path, monkeypatch):
    made = []
    from onsight.training import trainer

    real = trainer.Trainer._switch

    def noted(self, switch):
        made.append((self.progress.epoch, self.progress.step))
        real(self, switch)

    monkeypatch.setattr(trainer.Trainer, "_switch", noted)
    switches = [
        Switch(epoch=0, step=3, precision="fp32", threads=1, accumulate=2).model_dump(),
        Switch(epoch=1, step=0, precision="bf16", threads=1, accumulate=1).model_dump(),
    ]
    fields = FIELDS | {"epochs": 2, "plan": "default", "switches": switches}
    run = train(bars, out=tmp_path / "run", reporter=SilentReporter(), **fields)
    assert made == [(0, 3), (1, 0)]
    planned = json.loads((run.path / "plan.json").read_text())["switches"]
    assert [one["value"] for one in planned] == switches  # a repeated or resumed run keeps them
