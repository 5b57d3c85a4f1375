"""Saved timings against rates by hand."""

import json

import pytest

from onsight_explain.process.bench import SavedTimings, read_saved_timings
from onsight_explain.script.trace import Reads, Trace

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
