"""`torch.twin`: the module by which torch knows the twin, in the manner of torch.cuda."""

import time
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from onsight_explain.simulated.clocks import Clock
from onsight_explain.simulated.graph import TwinGraph
from onsight_explain.simulated.machine import DEVICES, NAME, Machine


class TwinEvent:
    """Marks a place in a stream's work. Created without a stream, it knows none."""

    def __init__(self, machine: Machine, device: object = None) -> None:
        # Like torch.Event(device): only the kind of device is kept.
        self._machine = machine
        self._clock: Clock = {}
        self._at_seconds = 0.0

    def record(self, stream: "TwinStream | None" = None) -> None:
        """Mark the end of a stream's work so far: by default, of the current device's stream."""
        self._clock = self._machine.snapshot(self._number_of(stream))
        self._at_seconds = time.perf_counter()  # the twin's work is done when it is given

    def synchronize(self) -> None:
        """Wait on the host."""
        self._machine.host_waits(self._clock, "Event.synchronize")

    def wait(self, stream: "TwinStream | None" = None) -> None:
        """Make a stream wait."""
        self._machine.stream_waits(self._number_of(stream), self._clock)

    def _number_of(self, stream: "TwinStream | None") -> int:
        machine = self._machine
        return machine.current_streams[machine.current_device] if stream is None else stream.number

    def elapsed_time(self, end: "TwinEvent") -> float:
        """Milliseconds until another event."""
        return 1000 * (end._at_seconds - self._at_seconds)

    def query(self) -> bool:
        """Whether it was reached, as far as the host is sure."""
        host = self._machine.host
        return all(host.get(stream, 0) >= work for stream, work in self._clock.items())


class TwinStream:
    """A queue of a device's work."""

    def __init__(self, machine: Machine, device: Any = None, number: int | None = None) -> None:
        self._machine = machine
        index = device_index(machine, device)
        self.number = machine.new_stream(index) if number is None else number
        self.device = torch.device(NAME, machine.device_of[self.number])

    def record_event(self, event: TwinEvent | None = None) -> TwinEvent:
        """An event after all work so far."""
        event = event or TwinEvent(self._machine)
        event.record(self)
        return event

    def wait_event(self, event: TwinEvent) -> None:
        """Let later work start after an event."""
        event.wait(self)

    def wait_stream(self, other: "TwinStream") -> None:
        """Let later work start after all of another stream so far."""
        self._machine.stream_waits(self.number, self._machine.snapshot(other.number))

    def is_capturing(self) -> bool:
        """Whether work is recorded instead of done."""
        return self._machine.recording is not None

    def synchronize(self) -> None:
        """Wait on the host for all work so far."""
        self._machine.host_waits(self._machine.snapshot(self.number), "Stream.synchronize")


def device_index(machine: Machine, device: Any) -> int:
    """The number of a device given as None, a number, a name or a torch.device."""
    if device is None:
        return machine.current_device
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return machine.current_device if index is None else index


class DeviceModule(types.ModuleType):
    """What torch.cuda is for CUDA."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(f"torch.{NAME}")
        self._machine = machine
        self.default_generators = (torch.default_generator,) * DEVICES

    def is_available(self) -> bool:
        """Always."""
        return True

    def is_initialized(self) -> bool:
        """Always."""
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Nothing: its random numbers are the CPU's, seeded there."""

    def device_count(self) -> int:
        """Two."""
        return DEVICES

    def current_device(self) -> int:
        """The device that work without an index is given to."""
        return self._machine.current_device

    def set_device(self, device: Any) -> None:
        """Make a device the current one."""
        self._machine.current_device = device_index(self._machine, device)

    def Stream(self, device: Any = None) -> TwinStream:  # noqa: N802
        """A further stream."""
        return TwinStream(self._machine, device)

    def Event(self, enable_timing: bool = False) -> TwinEvent:  # noqa: N802
        """An event."""
        return TwinEvent(self._machine)

    def current_stream(self, device: Any = None) -> TwinStream:
        """The stream that a device's work goes to."""
        index = device_index(self._machine, device)
        return TwinStream(self._machine, index, self._machine.current_streams[index])

    def stream(self, stream: TwinStream) -> AbstractContextManager[None]:
        """Let work go to a stream."""
        return self._machine.on_stream(stream.number)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Let a device be the current one."""
        former = self._machine.current_device
        self.set_device(device)
        try:
            yield
        finally:
            self._machine.current_device = former

    def synchronize(self, device: Any = None) -> None:
        """Wait for a device."""
        index = device_index(self._machine, device)
        self._machine.host_waits_for_device(index, "synchronize")

    def CUDAGraph(self) -> TwinGraph:  # noqa: N802
        """A graph."""
        return TwinGraph(self._machine)

    @contextmanager
    def graph(self, graph: TwinGraph, stream: TwinStream, **options: Any) -> Iterator[None]:
        """Record the work of a stream."""
        self.synchronize()
        with self.stream(stream):
            graph.capture_begin(**options)
            try:
                yield
            finally:
                graph.capture_end()

    def set_sync_debug_mode(self, mode: str) -> None:
        """Warn of waits from now on, or no longer."""
        self._machine.warns_of_waits = mode == "warn"

    def empty_cache(self) -> None:
        """Nothing: there is no cache."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes."""
        memory = self._machine.memories[device_index(self._machine, device)]
        return memory.limit_bytes - memory.used_bytes, memory.limit_bytes

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes in use."""
        return self._machine.memories[device_index(self._machine, device)].used_bytes

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most bytes that were in use."""
        return self._machine.memories[device_index(self._machine, device)].peak_bytes

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Forget the peak."""
        memory = self._machine.memories[device_index(self._machine, device)]
        memory.peak_bytes = memory.used_bytes

    def get_device_properties(self, device: Any = None) -> types.SimpleNamespace:
        """Name and memory."""
        memory = self._machine.memories[device_index(self._machine, device)]
        return types.SimpleNamespace(name="twin of the CPU", total_memory=memory.limit_bytes)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """What autocast may use."""
        return [torch.bfloat16, torch.float16]
