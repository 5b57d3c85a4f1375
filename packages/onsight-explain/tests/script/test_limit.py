"""A script that is started again, because it fails when it is forked, has one time limit."""

import pytest

from onsight_explain.errors import ScriptFailed
from onsight_explain.process import bench as benches
from onsight_explain.process.bench import ScriptBench
from onsight_explain.script.trace import Trace


class Slow:
    """Processes on a clock of their own: it takes 3 s to prepare, a forked run fails after 4."""

    limit_seconds = 10.0

    def __init__(self, script, clock, fails_after=4.0):
        self.script, self.clock, self.fails_after = script, clock, fails_after
        self.is_forked, self.asked = True, []

    def prepare(self, is_late):
        self.clock[0] += 3

    def start(self, first_limit_seconds, **_):
        self.asked.append(first_limit_seconds)
        return self

    def trace(self):
        if self.is_forked:
            self.clock[0] += self.fails_after
            raise ScriptFailed("planted")
        return Trace(ended="window", startup_seconds=1.0, seconds=1.0, images=5)

    def forget_servers(self):
        had, self.is_forked = self.is_forked, False
        return had


@pytest.fixture
def slow(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(benches.time, "monotonic", lambda: clock[0])
    script = tmp_path / "train.py"
    script.write_text("pass")
    return lambda **settings: Slow(script, clock, **settings)


def test_the_second_start_has_what_the_first_has_left(slow):
    processes = slow()
    ScriptBench(processes).watch(1.0)
    assert processes.asked == [7.0, 3.0]


def test_a_window_has_its_time_even_where_the_start_took_all(slow):
    processes = slow(fails_after=6.5)
    ScriptBench(processes).watch(2.0)
    assert processes.asked == [7.0, 4.0]


def test_after_the_limit_it_is_not_started_again(slow):
    processes = slow(fails_after=8.0)
    with pytest.raises(ScriptFailed, match="planted"):
        ScriptBench(processes).watch(1.0)
    assert processes.asked == [7.0]
