"""A run proves where everything was: once, after its first step, on every rank."""

import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

import onsight
from onsight.errors import Interrupted, PlacementError
from onsight.ranks import world
from onsight.report.console import Reporter, SilentReporter
from onsight.step import build
from onsight.training import placement_check
from onsight.training.placement_check import checking_placement

FAST = {"epochs": 2, "batch_size": 16, "threads": 1, "model": "lenet", "image_size": "16"}
ALL_KINDS = ["parameter", "loss weight", "optimizer state", "copy of the model", "batch"]


@pytest.fixture
def reporter():
    console = Console(record=True, file=sys.stderr, soft_wrap=True, width=400)
    return Reporter(console, verbose=True)


@pytest.fixture
def looked(monkeypatch):
    """What the run checked: a dict for each time."""
    calls = []
    real = placement_check.placement

    def look(**parts):
        calls.append(parts)
        return real(**parts)

    monkeypatch.setattr(placement_check, "placement", look)
    return calls


def entries_of(run):
    return json.loads((Path(run) / "placement.json").read_text(encoding="utf-8"))


def test_a_run_reports_and_saves_where_everything_was(bars, tmp_path, reporter):
    fields = FAST | {"ema": 0.9, "class_weights": "balanced", "optimizer": "adamw"}
    run = onsight.train(bars, out=tmp_path / "run", reporter=reporter, **fields)
    (entry,) = entries_of(run.path)
    assert (entry["rank"], entry["device"], entry["problems"]) == (0, "cpu", [])
    rows = {row["kind"]: row for row in entry["rows"] if row["dtype"] == "float32"}
    assert list(rows) == ALL_KINDS
    count = run.results["parameters"]
    assert rows["parameter"]["numbers"] == rows["copy of the model"]["numbers"] == count
    tensors = rows["parameter"]["tensors"]
    assert rows["optimizer state"]["tensors"] == 3 * tensors  # two averages and a step counter
    assert rows["optimizer state"]["numbers"] == 2 * count + tensors
    assert rows["loss weight"]["numbers"] == 2
    assert rows["batch"]["numbers"] == 16 * 16 * 16
    labels = next(row for row in entry["rows"] if row["dtype"] == "int64")
    assert (labels["kind"], labels["numbers"], labels["bytes"]) == ("batch", 16, 128)
    lines = [line for line in reporter.console.export_text().splitlines() if "placement: " in line]
    assert lines == [f"placement: {entry['verdict']}"]
    assert f"everything is on cpu: {count:,} parameters" in entry["verdict"]


def test_placement_is_checked_once_after_a_real_step(bars, tmp_path, looked):
    onsight.train(bars, out=tmp_path / "run", reporter=SilentReporter(), **FAST)
    (parts,) = looked
    assert parts["metrics"] is None
    assert parts["batch"]["inputs"].shape == (16, 1, 16, 16)
    assert parts["optimizer"].state  # empty before the first step


def test_a_resumed_run_proves_it_again(bars, tmp_path, monkeypatch, looked):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(world, "StopRequest", lambda: StopAfter(3))
        with pytest.raises(Interrupted):
            onsight.train(bars, out=out, reporter=SilentReporter(), **FAST)
    first = entries_of(out)
    (out / "placement.json").unlink()
    onsight.train(bars, out=out, resume=True, reporter=SilentReporter())
    assert entries_of(out) == first
    assert len(looked) == 2


class StopAfter:
    """A stop request that is made after the given number of steps."""

    signal_number = 15

    def __init__(self, steps):
        self.steps = steps

    def __bool__(self):
        self.steps -= 1
        return self.steps <= 0


def test_an_optimizer_of_other_parameters_stops_the_run(bars, tmp_path, monkeypatch):
    real = build.make_optimizer

    def of_a_copy(model, *words):
        return real(copy.deepcopy(model), *words)

    monkeypatch.setattr(build, "make_optimizer", of_a_copy)
    with pytest.raises(PlacementError, match=r"none of the model's.*Write: optimizer = ") as raised:
        onsight.train(bars, out=tmp_path / "run", reporter=SilentReporter(), **FAST)
    assert raised.value.exit_code == 2
    (entry,) = entries_of(tmp_path / "run")
    assert entry["problems"][0]["what"] in str(raised.value)
    assert not (tmp_path / "run" / "checkpoints" / "last.safetensors").exists()


class Masked(nn.Module):
    """Has a mask on another device in a plain attribute; uses it in training if asked to."""

    def __init__(self, uses):
        super().__init__()
        self.linear = nn.Linear(256, 2)
        self.uses = uses
        self.mask = torch.ones(256, device="meta")

    def forward(self, images):
        inputs = images.flatten(1)
        return self.linear(inputs * self.mask if self.uses and self.training else inputs)


def test_a_step_that_fails_because_of_a_misplaced_tensor_names_it(bars, tmp_path):
    fields = FAST | {"model": Masked(uses=True), "plan": "default"}
    with pytest.raises(PlacementError) as raised:
        onsight.train(bars, out=tmp_path / "run", reporter=SilentReporter(), **fields)
    message = str(raised.value)
    assert message.startswith("mask is on meta, but the model is on cpu")
    assert message.endswith('Write: self.register_buffer("mask", mask)')
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_trial_that_fails_because_of_a_misplaced_tensor_names_it(bars, tmp_path, monkeypatch):
    monkeypatch.setattr("onsight.tune.planning._MIN_RUN_SECONDS", 0.0)
    fields = FAST | {"model": Masked(uses=True), "plan": "fresh"}
    with pytest.raises(PlacementError, match="mask is on meta"):
        onsight.train(bars, out=tmp_path / "run", reporter=SilentReporter(), **fields)
    assert not (tmp_path / "run" / "placement.json").exists()


def test_building_a_step_that_fails_because_of_a_misplaced_tensor_names_it(
    bars, tmp_path, monkeypatch
):
    def fail(*words):
        raise RuntimeError("Expected all tensors to be on the same device")

    monkeypatch.setattr(build, "make_step", fail)
    fields = FAST | {"model": Masked(uses=False)}
    with pytest.raises(PlacementError, match="mask is on meta"):
        onsight.train(bars, out=tmp_path / "run", reporter=SilentReporter(), **fields)


def test_a_misplaced_tensor_that_does_no_harm_is_reported_and_training_continues(
    bars, tmp_path, reporter
):
    run = onsight.train(
        bars, out=tmp_path / "run", reporter=reporter, **FAST | {"model": Masked(uses=False)}
    )
    assert run.results["images"] > 0
    ((problem,),) = [entry["problems"] for entry in entries_of(run.path)]
    assert problem["name"] == "mask"
    lines = [line for line in reporter.console.export_text().splitlines() if "placement: " in line]
    assert lines == [f"note: placement: {problem['what']}"]


class Boom(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 2)
        self.mask = torch.ones(256, device="meta")

    def forward(self, images):
        if self.training:
            raise RuntimeError("my own mistake")
        return self.linear(images.flatten(1))


def test_an_unrelated_error_of_the_users_is_not_replaced(bars, tmp_path):
    with pytest.raises(RuntimeError, match="my own mistake"):
        onsight.train(
            bars,
            out=tmp_path / "run",
            reporter=SilentReporter(),
            **FAST | {"model": Boom(), "plan": "default"},
        )


def test_a_problem_on_one_rank_is_raised_on_every_rank(tmp_path):
    """Each rank gets the reports of all, so that none waits for one that has stopped."""
    net = nn.Linear(2, 2)
    problem = {"name": "b", "kind": "buffer", "what": "b is on cpu, but", "fix": "model = ..."}
    entries = [
        {"rank": rank, "device": "cuda:1", "verdict": "", "problems": [problem] if rank else []}
        for rank in range(2)
    ]
    for rank in range(2):
        shared = SimpleNamespace(
            rank=rank,
            is_main=rank == 0,
            watchdog_paused=world.World().watchdog_paused,
            gather=lambda what, line: [json.dumps(entry) for entry in entries],
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        step = SimpleNamespace(model=net, loss=None, optimizer=optimizer, world=shared)
        batch = torch.ones(1, 2), torch.zeros(1)
        folder = SimpleNamespace(path=tmp_path)
        with (
            pytest.raises(PlacementError, match=r"^rank 1: b is on cpu, but\. Write: model = "),
            checking_placement(folder, SilentReporter(), step, None, batch),
        ):
            pass
    assert entries_of(tmp_path) == entries
