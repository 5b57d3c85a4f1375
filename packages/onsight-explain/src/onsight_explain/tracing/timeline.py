"""The phases of a training run as time slices, in the Trace Event Format of Perfetto and Chrome."""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from onsight_explain.files import write_atomically
from onsight_explain.tracing.clock import PHASES, PhaseClock
from onsight_explain.tracing.device_time import DeviceTime
from onsight_explain.tracing.sites import Site, Sites

MAX_CHANGES = 100_000  # changes of phase to keep: about 20 MB of JSON
_PROCESS = 1  # 0 has a special meaning in Perfetto
_HOST, _DEVICE = 1, 2  # tracks
_TRACKS = {_HOST: "training thread", _DEVICE: "device, every 4th step"}


class Slice(NamedTuple):
    """A time interval on a track."""

    track: int
    name: str
    phase: str  # "" for a whole step
    begin: int  # nanoseconds of the host's clock
    end: int
    site: str = ""


@dataclass(frozen=True)
class Timeline:
    """The slices of one process within its measured window."""

    slices: list[Slice]
    is_cut: bool  # whether the beginning was dropped because there were too many


class TimelineRecorder:
    """Collects the last 100,000 changes of phase and the ends of steps."""

    def __init__(self, clock: PhaseClock, sites: Sites) -> None:
        self._clock, self._sites = clock, sites
        self._changes: deque[tuple[float, str, Site | None]] = deque(maxlen=MAX_CHANGES)
        self._steps: deque[tuple[float, int]] = deque(maxlen=MAX_CHANGES)
        self._changes.append((clock.since, clock.phase, None))
        clock.on_phase.append(self._on_phase)

    def step(self, done: int) -> None:
        """Note that a step has ended, `done` in total."""
        self._steps.append((perf_counter(), done))

    def timeline(self, first: float, last: float, device: DeviceTime | None) -> Timeline:
        """Return the slices between two times of the host's clock."""
        changes = list(self._changes)
        oldest = changes[0][0]
        is_cut = len(changes) == MAX_CHANGES and oldest > first
        first = max(first, oldest) if is_cut else first
        steps = list(_step_slices(list(self._steps), first, last))
        slices = [*steps, *_phase_slices(changes, [step.end for step in steps], first, last)]
        if device:
            for phase, begin, end in device.slices():
                begin, end = max(first, begin), min(last, end)
                if begin < end:
                    times = _nanoseconds(begin), _nanoseconds(end)
                    slices.append(Slice(_DEVICE, PHASES[phase], phase, *times))
        return Timeline(slices=slices, is_cut=is_cut)

    def _on_phase(self, phase: str) -> None:
        site = self._sites.here() if phase == "sync" else None
        self._changes.append((self._clock.since, phase, site))


def write_timeline(path: Path, name: str, timeline: Timeline) -> str:
    """Write the timeline of the script or run with this name; return a line about the file.

    Raises DiskError.
    """
    origin = min((time_slice.begin for time_slice in timeline.slices), default=0)
    events = list(_metadata(name, timeline))
    events += (_event(time_slice, origin) for time_slice in timeline.slices)
    count = len(timeline.slices)
    contents = f"{count:,} slices of the measured window"
    if timeline.is_cut:
        contents = f"the last {count:,} slices; the beginning of the window is omitted"
    document = {
        "otherData": {"generator": "onsight explain", "of": name, "holds": contents},
        "traceEvents": events,
        "displayTimeUnit": "ms",
    }
    write_atomically(path, json.dumps(document, separators=(",", ":")).encode())
    return f"{path}: {contents}; open it at ui.perfetto.dev or in chrome://tracing"


def _step_slices(ends: list[tuple[float, int]], first: float, last: float) -> Iterator[Slice]:
    """Yield whole steps, and partial ones at both ends, so that every phase lies in a step."""
    begin = first
    for end, done in ends:
        if begin < end <= last:
            yield Slice(_HOST, f"step {done}", "", _nanoseconds(begin), _nanoseconds(end))
            begin = end
    if begin < last:
        yield Slice(_HOST, "unfinished step", "", _nanoseconds(begin), _nanoseconds(last))


def _phase_slices(
    changes: list[tuple[float, str, Site | None]], step_ends: list[int], first: float, last: float
) -> Iterator[Slice]:
    """Yield the phases, cut at the ends of steps, which are in order."""
    ends = [start for start, _, _ in changes[1:]] + [last]
    place = 0
    for (began, phase, site), ended in zip(changes, ends, strict=False):
        begin, end = _nanoseconds(max(began, first)), _nanoseconds(min(ended, last))
        while begin < end:
            while place < len(step_ends) and step_ends[place] <= begin:
                place += 1
            until = min(end, step_ends[place]) if place < len(step_ends) else end
            yield Slice(_HOST, PHASES[phase], phase, begin, until, str(site) if site else "")
            begin = until


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _event(time_slice: Slice, origin: int) -> dict[str, Any]:
    event = {
        "ph": "X",
        "name": time_slice.name,
        "cat": time_slice.phase or "step",
        "pid": _PROCESS,
        "tid": time_slice.track,
        "ts": (time_slice.begin - origin) / 1000,  # microseconds
        "dur": (time_slice.end - time_slice.begin) / 1000,
    }
    return event | {"args": {"line": time_slice.site}} if time_slice.site else event


def _metadata(name: str, timeline: Timeline) -> Iterator[dict[str, Any]]:
    yield _name_event("process_name", 0, name)
    for track in sorted({time_slice.track for time_slice in timeline.slices}):
        yield _name_event("thread_name", track, _TRACKS[track])


def _name_event(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": track, "args": {"name": name}}
