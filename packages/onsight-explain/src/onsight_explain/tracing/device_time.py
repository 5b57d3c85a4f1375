"""Measure how long an accelerator spends in each phase, by events in its streams.

The host may block in any phase, not only in the one that started the work, so the device's timings
are used instead of its clock. An event is put into the accelerator's queue at every change of
phase; between two events it did the work of that phase, or waited for the host.
"""

from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch import nn

from onsight_explain.devices import has_streams, module_of
from onsight_explain.tracing.clock import PhaseClock

_MARK_EVERY = 4  # steps, so that marking stays cheap
_RARE_PHASE = "evaluation"  # marked steps contain too little of it for an estimate


class DeviceTime:
    """Puts events around the phases of every fourth step, on a device that has streams."""

    def __init__(self, device: torch.device) -> None:
        self.is_marking = False
        self._device = device
        self._marks: list[tuple[str, Any]] = []  # events of any accelerator, by phase

    def step(self, done: int, phase: str) -> None:
        """Mark the end of step number `done`; the next one begins in this phase."""
        if self.is_marking:
            self._mark("")
        self.is_marking = done % _MARK_EVERY == 0
        if self.is_marking:
            self._mark(phase)

    def on_phase(self, phase: str) -> None:
        """Mark that the host has entered another phase."""
        if self.is_marking:
            self._mark(phase)

    def slices(self) -> list[tuple[str, float, float]]:
        """Return (phase, start, end) for each marked span, on the host's clock.

        Waits for the device. The two clocks are compared only once, now; they drift apart by
        microseconds over minutes.
        """
        last = self._event()
        torch.accelerator.synchronize(self._device)
        now = perf_counter()
        times = [(phase, now - event.elapsed_time(last) / 1000) for phase, event in self._marks]
        return [(phase, start, end) for (phase, start), (_, end) in pairwise(times) if phase]

    def seconds(self) -> dict[str, float]:
        """Return the seconds of the marked steps by phase; waits for the device."""
        torch.accelerator.synchronize(self._device)
        totals: dict[str, float] = {}
        for (phase, began), (_, ended) in pairwise(self._marks):
            if phase:
                totals[phase] = totals.get(phase, 0.0) + began.elapsed_time(ended) / 1000
        return totals

    def _mark(self, phase: str) -> None:
        self._marks.append((phase, self._event()))

    def _event(self) -> Any:
        backend = module_of(self._device)
        event = backend.Event(enable_timing=True)
        event.record(backend.current_stream(self._device))  # the device need not be the current one
        return event


def follow_device(network: nn.Module | None, clock: PhaseClock) -> DeviceTime | None:
    """Mark a clock's phases on the network's device; None if that is not an accelerator."""
    parameter = next(network.parameters(), None) if network is not None else None
    if parameter is None or not has_streams(parameter.device):
        return None
    device_time = DeviceTime(parameter.device)
    clock.on_phase.append(device_time.on_phase)
    return device_time


def effective_phases(
    host_phases: dict[str, float], device_phases: dict[str, float] | None
) -> dict[str, float]:
    """Return the seconds by phase as the accelerator spent them, scaled to the host's total.

    The host may block in any phase, so the device's timings are used where there are any.
    Without an accelerator, the host's phases are returned.
    """
    marked = dict(device_phases or {})
    marked.pop(_RARE_PHASE, None)
    if not sum(marked.values()):
        return host_phases
    rare = host_phases.get(_RARE_PHASE, 0.0)
    scale = (sum(host_phases.values()) - rare) / sum(marked.values())
    return {_RARE_PHASE: rare} | {name: scale * seconds for name, seconds in marked.items()}
