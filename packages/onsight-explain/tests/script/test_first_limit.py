"""How long a trial of a script is waited for; the clock is planted."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from onsight_explain.process.bench import ScriptBench
from onsight_explain.tracing.window import Epoch


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """At second 100, of a script that takes two seconds to its first step."""
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    script = Path(tmp_path / "train.py")
    script.write_text("pass\n")
    bench = ScriptBench(SimpleNamespace(script=script, limit_seconds=120.0))
    bench.startup_seconds = 2.0
    return bench


def test_before_anything_is_tried_only_the_users_limit_counts(bench):
    assert bench.first_limit(0.5) == 120.0


def test_a_trial_that_hangs_does_not_use_up_the_time_of_all(bench):
    bench.until = 140.0
    assert bench.first_limit(0.5) == 20.0


def test_late_trials_are_given_what_a_start_and_a_window_take(bench):
    bench.until = 101.0
    assert bench.first_limit(0.5) == 2 * 2.0 + 0.5 + 2.0
    bench.epoch = Epoch(images=100, seconds=3.0)
    assert bench.first_limit(0.5) == 2 * 2.0 + 2 * 3.0 + 2.0
