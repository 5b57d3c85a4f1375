"""Saved timings against rates by hand."""

import json

import pytest

from onsight_explain.diagnosis import explain
from onsight_explain.process.bench import SavedTimings, ScriptBench, read_saved_timings
from onsight_explain.script.trace import Reads, Trace
from onsight_explain.what_ifs.what_if import make_what_ifs

PHASES = {"data": 0.75, "forward": 0.25}


@pytest.mark.parametrize(
    ("changes", "rate"), [([], 500.0), (["fused"], 500.0), (["workers", "cache"], 3000.0)]
)
def test_changes_multiply_the_saved_speed(changes, rate):
    timings = SavedTimings(
        step_seconds=0.01, phases=PHASES, speedups={"workers": 2.0, "cache": 3.0}
    )
    measured = Trace(ended="window", startup_seconds=7.0, seconds=3.3, steps=10, images=50)
    trace = timings.replace(measured, changes)
    assert trace.images_per_second == pytest.approx(rate)
    assert trace.share("data") == pytest.approx(0.75)
    assert sum(trace.phases.values()) == pytest.approx(trace.seconds)


def test_windows_of_any_length_give_the_same_trace():
    timings = SavedTimings(step_seconds=0.01, phases=PHASES)
    windows = [
        Trace(
            ended="window",
            startup_seconds=1.0,
            seconds=steps / 90,
            steps=steps,
            images=8 * steps,
            losses=[1.0] * steps,
            reads=[Reads(sites=[], per_step=8 - 1 / steps)],
            bytes=1_234_560 + steps,
        )
        for steps in (40, 70)
    ]
    first, second = (timings.replace(trace, []) for trace in windows)
    assert first == second


def test_the_environment_names_the_file(tmp_path, monkeypatch):
    monkeypatch.delenv("ONSIGHT_SAVED_TIMINGS", raising=False)
    assert read_saved_timings() is None
    path = tmp_path / "timings.json"
    path.write_text(json.dumps({"step_seconds": 0.5, "phases": PHASES}))
    monkeypatch.setenv("ONSIGHT_SAVED_TIMINGS", str(path))
    assert read_saved_timings() == SavedTimings(step_seconds=0.5, phases=PHASES)


SCRIPT = """import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.ones(64, 4), torch.zeros(64, dtype=torch.long))
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters())
for epoch in range(10_000):
    for images, labels in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("waiting", "cause"),
    [(0.9, "slow-transform"), pytest.param(0.6, "noise", marks=pytest.mark.soak)],
)
@pytest.mark.usefixtures("forked")
def test_beside_other_work_only_a_clear_wait_is_named(tmp_path, monkeypatch, waiting, cause):
    """With recorded timings: no change helps, and the control is exactly 1."""
    saved, script = tmp_path / "timings.json", tmp_path / "train.py"
    phases = {"data": waiting, "forward": 1 - waiting}
    saved.write_text(json.dumps({"step_seconds": 0.01, "phases": phases, "item_seconds": 0.001}))
    script.write_text(SCRIPT)
    monkeypatch.setenv("ONSIGHT_SAVED_TIMINGS", str(saved))
    monkeypatch.setattr(explain, "warn_if_busy", lambda messages: True)
    monkeypatch.setattr(ScriptBench, "candidates", lambda *_: make_what_ifs({"fused": True}))
    found = explain.explain_script(script, [], seconds=2.0)
    assert found.cause.name == cause
    assert "other work keeps this machine busy" in found.verdict
    assert "times as fast" not in found.verdict
