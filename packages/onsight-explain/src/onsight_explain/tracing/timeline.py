"""The phases of a training as slices of time, in the Trace Event Format of Perfetto and Chrome."""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from onsight_explain.files import write_atomically
from onsight_explain.tracing.clock import PHASES, PhaseClock
from onsight_explain.tracing.devicetime import DeviceTime
from onsight_explain.tracing.sites import Site, Sites

MOST_CHANGES = 100_000  # of phases, which are kept: about 20 MB of JSON
_PROCESS = 1  # 0 has a meaning of its own in Perfetto
_HOST, _DEVICE = 1, 2  # tracks
_TRACKS = {_HOST: "training thread", _DEVICE: "device, every 4th step"}


class Slice(NamedTuple):
    """A stretch of time on a track, in nanoseconds of the host's clock; phase "": a whole step."""

    track: int
    name: str
    phase: str
    begin: int
    end: int
    site: str = ""


@dataclass(frozen=True)
class Timeline:
    """The slices of one process within its measured window; cut: its beginning was not kept."""

    slices: list[Slice]
    is_cut: bool


class TimelineRecorder:
    """Collects the changes of a clock's phases, the last 100,000, and the ends of steps."""

    def __init__(self, clock: PhaseClock, sites: Sites) -> None:
        self._clock, self._sites = clock, sites
        self._changes: deque[tuple[float, str, Site | None]] = deque(maxlen=MOST_CHANGES)
        self._steps: deque[tuple[float, int]] = deque(maxlen=MOST_CHANGES)
        self._changes.append((clock.since, clock.phase, None))
        clock.on_phase.append(self._on_phase)

    def step(self, done: int) -> None:
        """A step has ended. done: how many so far."""
        self._steps.append((perf_counter(), done))

    def timeline(self, first: float, last: float, device: DeviceTime | None) -> Timeline:
        """The slices between two moments of the host's clock."""
        changes = list(self._changes)
        begun = changes[0][0] if changes else last
        is_cut = len(changes) == MOST_CHANGES and begun > first
        first = max(first, begun) if is_cut else first
        steps = list(_steps(list(self._steps), first, last))
        slices = [*steps, *_phases(changes, [step.end for step in steps], first, last)]
        if device:
            marked = (
                (phase, max(first, one), min(last, two)) for phase, one, two in device.slices()
            )
            slices += [_slice(_DEVICE, *each) for each in marked if each[1] < each[2]]
        return Timeline(slices=slices, is_cut=is_cut)

    def _on_phase(self, phase: str) -> None:
        site = next(iter(self._sites.here()), None) if phase == "sync" else None
        self._changes.append((self._clock.since, phase, site))


def write_timeline(path: Path, name: str, timeline: Timeline) -> str:
    """Write a timeline into a file, atomically, and tell what it holds and where.

    name: of what was trained. Raises DiskError.
    """
    origin = min((one.begin for one in timeline.slices), default=0)
    events = list(_metadata(name, timeline))
    events += (_event(one, origin) for one in timeline.slices)
    count = len(timeline.slices)
    said = f"{count:,} slices of the measured window"
    if timeline.is_cut:
        said = f"the last {count:,} slices; the window's beginning is left out"
    content = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"of": name, "holds": said},
    }
    write_atomically(path, json.dumps(content, separators=(",", ":")).encode())
    return f"{path}: {said}; open it at ui.perfetto.dev or in chrome://tracing"


def _steps(ends: list[tuple[float, int]], first: float, last: float) -> Iterator[Slice]:
    """Whole steps, and parts at both ends, so that every phase lies inside a step."""
    begin = first
    for moment, done in ends:
        if begin < moment <= last:
            yield Slice(_HOST, f"step {done}", "", _nanoseconds(begin), _nanoseconds(moment))
            begin = moment
    if begin < last:
        yield Slice(_HOST, "begun step", "", _nanoseconds(begin), _nanoseconds(last))


def _phases(
    changes: list[tuple[float, str, Site | None]], cuts: list[int], first: float, last: float
) -> Iterator[Slice]:
    """The phases, cut at the ends of steps. cuts: these ends, in order."""
    ends = [moment for moment, _, _ in changes[1:]] + [last]
    place = 0
    for (begun, phase, site), ended in zip(changes, ends, strict=False):
        begin, end = _nanoseconds(max(begun, first)), _nanoseconds(min(ended, last))
        while begin < end:
            while place < len(cuts) and cuts[place] <= begin:
                place += 1
            until = min(end, cuts[place]) if place < len(cuts) else end
            where = str(site) if site else ""
            yield Slice(_HOST, PHASES[phase], phase, begin, until, where)
            begin = until


def _slice(track: int, phase: str, begin: float, end: float) -> Slice:
    return Slice(track, PHASES[phase], phase, _nanoseconds(begin), _nanoseconds(end))


def _nanoseconds(moment: float) -> int:
    return round(moment * 1e9)


def _event(one: Slice, origin: int) -> dict[str, Any]:
    event = {
        "ph": "X",
        "name": one.name,
        "cat": one.phase or "step",
        "pid": _PROCESS,
        "tid": one.track,
        "ts": (one.begin - origin) / 1000,  # microseconds
        "dur": (one.end - one.begin) / 1000,
    }
    return event | {"args": {"line": one.site}} if one.site else event


def _metadata(name: str, timeline: Timeline) -> Iterator[dict[str, Any]]:
    yield _named("process_name", 0, name)
    for track in sorted({one.track for one in timeline.slices}):
        yield _named("thread_name", track, _TRACKS[track])


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": track, "args": {"name": name}}
