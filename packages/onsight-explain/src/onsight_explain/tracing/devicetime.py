"""How long an accelerator spent in each phase, by events on its own timeline.

An accelerator works in the background, so the host's clock charges one phase with work that an
earlier phase started. An event is put into the accelerator's queue at every change of phase;
between two events it did the work of that phase, or waited for the host.
"""

from time import perf_counter
from typing import Any

import torch
from torch import nn

from onsight_explain.accelerator import has_streams, module_of
from onsight_explain.tracing.clock import PhaseClock

_EVERY = 4  # one step in so many is marked, so that marking stays cheap
_RARE = "evaluation"  # too few lie in a marked step to tell their share


class DeviceTime:
    """Marks every fourth step of a training on a device, which has streams."""

    def __init__(self, device: torch.device) -> None:
        self.is_marking = False
        self._device = device
        self._marks: list[tuple[str, Any]] = []  # any accelerator's events

    def step(self, done: int, phase: str) -> None:
        """A step has ended, and the next one begins in this phase."""
        if self.is_marking:
            self._mark("")
        self.is_marking = done % _EVERY == 0
        if self.is_marking:
            self._mark(phase)

    def on_phase(self, phase: str) -> None:
        """The host has entered another phase."""
        if self.is_marking:
            self._mark(phase)

    def slices(self) -> list[tuple[str, float, float]]:
        """Phase, begin and end of what was marked, on the clock of the host; waits for the device.

        Clocks are compared once, now: over minutes they drift apart by microseconds.
        """
        last = self._event()
        torch.accelerator.synchronize(self._device)
        now = perf_counter()
        moments = [now - event.elapsed_time(last) / 1000 for _, event in self._marks]
        phases = [phase for phase, _ in self._marks]
        stretches = zip(phases, moments, moments[1:], strict=False)
        return [stretch for stretch in stretches if stretch[0]]

    def seconds(self) -> dict[str, float]:
        """Seconds of the marked steps, by phase; waits for the accelerator."""
        torch.accelerator.synchronize(self._device)
        found: dict[str, float] = {}
        for (phase, begun), (_, ended) in zip(self._marks, self._marks[1:], strict=False):
            if phase:
                found[phase] = found.get(phase, 0.0) + begun.elapsed_time(ended) / 1000
        return found

    def _mark(self, phase: str) -> None:
        self._marks.append((phase, self._event()))

    def _event(self) -> Any:
        backend = module_of(self._device)
        event = backend.Event(enable_timing=True)
        event.record(backend.current_stream(self._device))  # the device need not be the current one
        return event


def followed(network: nn.Module | None, clock: PhaseClock) -> DeviceTime | None:
    """Marks a clock's phases on the timeline of a network's device, if that is an accelerator."""
    parameter = next(network.parameters(), None) if network is not None else None
    if parameter is None or not has_streams(parameter.device):
        return None
    device_time = DeviceTime(parameter.device)
    clock.on_phase.append(device_time.on_phase)
    return device_time


def judged_phases(phases: dict[str, float], on_device: dict[str, float] | None) -> dict[str, float]:
    """Seconds by phase as the accelerator spent them, of the same sum; the host's without one.

    A host that is ahead waits somewhere, in any phase; the accelerator's phases say for what.
    """
    marked = {name: seconds for name, seconds in (on_device or {}).items() if name != _RARE}
    if not sum(marked.values()):
        return phases
    rare = phases.get(_RARE, 0.0)
    scale = (sum(phases.values()) - rare) / sum(marked.values())
    return {_RARE: rare} | {name: scale * seconds for name, seconds in marked.items()}
