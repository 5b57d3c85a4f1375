"""How long a trial of a script is waited for; the clock is planted."""

import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from onsight_explain.delivery.delivery import deliver
from onsight_explain.process.bench import ScriptBench
from onsight_explain.script.trace import Trace
from onsight_explain.search import TrialFailed
from onsight_explain.tracing.window import Epoch
from onsight_explain.what_ifs.what_if import make_what_ifs


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


class Preparing:
    """A trial that prepares its items for 30 s before its first step, and is not steady."""

    def __init__(self, bench, clock):
        self.bench, self.clock = bench, clock
        self.rates = itertools.cycle([500.0, 900.0])
        self.first = None

    def measure(self, seconds):
        if self.bench.first_limit(seconds) < 30.0:
            raise TrialFailed("no training step in time")
        if not self.first:
            self.clock[0] += 30.0
            self.first = Trace(ended="window", startup_seconds=30.0, losses=[1.0])
        return next(self.rates)

    def close(self):
        pass


def test_the_set_up_of_a_fixed_script_is_waited_for_after_the_search(bench, monkeypatch):
    """Prepared in 30 s, although the time for the search has passed; all rounds come after it."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    bench.until, bench.losses = 99.0, [1.0]
    monkeypatch.setattr(bench, "open", lambda changes: Preparing(bench, clock))
    script, target = bench.processes.script, bench.processes.script.with_name("fixed.py")
    trace = Trace(ended="window", startup_seconds=2.0, seconds=1.0, steps=10)
    plain = SimpleNamespace(measure=lambda seconds: 100.0)
    changes = make_what_ifs({"threads": 1})
    found = deliver(script, trace, changes, target, bench, plain, 0.5)
    assert found.proof.problem == ""
    assert found.proof.setup_seconds == (2.0, 30.0)
    assert len(found.proof.rounds.changed) == 8
    assert target.exists()
