"""Timelines in the Trace Event Format, read by a parser of their own."""

import itertools
import json
import time

import pytest

from onsight_explain.errors import DiskError
from onsight_explain.explain import check_trace_name
from onsight_explain.tracing import clock as clock_module
from onsight_explain.tracing import timeline as module
from onsight_explain.tracing.clock import PHASES, PhaseClock
from onsight_explain.tracing.sites import Sites
from onsight_explain.tracing.timeline import TimelineRecorder, write_timeline


class Device:
    """What DeviceTime has marked, partly before the window."""

    def __init__(self, first):
        self.first = first

    def slices(self):
        return [("forward", self.first - 1, self.first + 0.002), ("backward", 0.0, 0.1)]


class Time:
    """A clock that only moves when it is told to, whatever else the machine does."""

    def __init__(self):
        self.now = 55_000.0

    def __call__(self):
        return self.now

    def pass_by(self, seconds):
        self.now += seconds


def train(recorder, clock, steps, seconds):
    for done in range(steps):
        with clock.within("data"):
            seconds.pass_by(0.0005)
        with clock.within("forward"):
            seconds.pass_by(0.0005)
            with clock.within("sync"):
                seconds.pass_by(0.0002)
        seconds.pass_by(0.0001)
        recorder.step(done + 1)


@pytest.fixture
def seconds(monkeypatch):
    seconds = Time()
    for part in (clock_module, module):
        monkeypatch.setattr(part, "perf_counter", seconds)
    return seconds


@pytest.fixture
def recorded(tmp_path, seconds):
    clock = PhaseClock()
    recorder = TimelineRecorder(clock, Sites(tmp_path.parent))
    train(recorder, clock, 3, seconds)
    before, first = clock.read(), seconds()
    train(recorder, clock, 20, seconds)
    after, last = clock.read(), seconds()
    phases = {name: after[name] - before[name] for name in PHASES}
    return recorder.timeline(first, last, Device(first)), phases


def slices_of(path):
    content = json.loads(path.read_text())
    events = content["traceEvents"]
    named = {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in events
        if (one["ph"], one["name"]) == ("M", "thread_name")
    }
    found = [one for one in events if one["ph"] == "X"]
    for one in found:
        assert one["ts"] >= 0
        assert one["dur"] >= 0
        assert (one["pid"], one["tid"]) in named
    return found, named


def test_slices_are_nested_and_add_up_to_the_phases(recorded, tmp_path):
    timeline, phases = recorded
    path = tmp_path / "trace.json"
    said = write_timeline(path, "train.py", timeline)
    check_trace_name(path)  # a later one may replace it
    found, named = slices_of(path)
    assert set(named.values()) == {"training thread", "device, every 4th step"}
    (process,) = (
        one for one in json.loads(path.read_text())["traceEvents"] if one["name"] == "process_name"
    )
    assert (process["pid"], process["args"]) == (found[0]["pid"], {"name": "train.py"})
    host = [one for one in found if one["tid"] == 1]
    for name, words in PHASES.items():
        seconds = sum(one["dur"] for one in host if one["name"] == words) / 1e6
        assert seconds == pytest.approx(phases[name], abs=1e-8)
    steps = [one for one in host if one["cat"] == "step"]
    assert [one["name"] for one in steps[:20]] == [f"step {n}" for n in range(1, 21)]
    for one in host:
        around = [
            step
            for step in steps
            if step["ts"] <= one["ts"] + 1e-3
            and one["ts"] + one["dur"] <= step["ts"] + step["dur"] + 1e-3
        ]
        assert around
    for one, other in itertools.pairwise(steps):
        assert one["ts"] + one["dur"] == pytest.approx(other["ts"], abs=1e-3)
    assert f"{len(found):,} slices" in said
    device = [one for one in found if one["tid"] == 2]
    assert [(one["name"], one["ts"]) for one in device] == [("forward and loss", 0.0)]


def test_reads_name_their_line(tmp_path):
    clock = PhaseClock()
    recorder = TimelineRecorder(clock, Sites(tmp_path))
    code = compile("with clock.within('sync'):\n    pass\n", str(tmp_path / "train.py"), "exec")
    first = time.perf_counter()
    exec(code, {"clock": clock})
    timeline = recorder.timeline(first, time.perf_counter(), None)
    write_timeline(tmp_path / "trace.json", "train.py", timeline)
    found, _ = slices_of(tmp_path / "trace.json")
    (read,) = (one for one in found if one["cat"] == "sync")
    assert read["args"] == {"line": "train.py:1"}


def test_only_the_last_changes_are_kept_and_the_line_reports_it(tmp_path, monkeypatch, seconds):
    monkeypatch.setattr(module, "MAX_CHANGES", 30)
    clock = PhaseClock()
    recorder = TimelineRecorder(clock, Sites(tmp_path))
    first = seconds()
    train(recorder, clock, 20, seconds)
    timeline = recorder.timeline(first, seconds(), None)
    assert timeline.is_cut
    assert sum(one.phase != "" for one in timeline.slices) < 50
    assert "the beginning of the window is omitted" in write_timeline(
        tmp_path / "t.json", "train.py", timeline
    )


def test_a_folder_is_refused(recorded, tmp_path):
    with pytest.raises(DiskError, match="cannot write"):
        write_timeline(tmp_path, "train.py", recorded[0])
