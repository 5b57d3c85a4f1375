"""`torch.simulated`, the counterpart of torch.cuda: streams, events, graphs, memory."""

import time
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from onsight_explain.simulated.dispatch import leaves
from onsight_explain.simulated.machine import (
    DEVICE_TYPE,
    DEVICES,
    Clock,
    DeviceMemory,
    Machine,
    poison_,
)

DEVICE_NAME = "simulated GPU (computes on the CPU)"

_aten = torch.ops.aten
# Indices of arguments that an operation writes to although its schema does not declare it.
_UNDECLARED_WRITES = {_aten.native_batch_norm.default: (3, 4)}


class SimulatedEvent:
    """A point in a stream's work, like torch.cuda.Event."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._clock: Clock = {}
        self._recorded_at = 0.0

    def record(self, stream: "SimulatedStream | None" = None) -> None:
        """Mark the end of a stream's work so far; by default of the current device's stream."""
        self._clock = self._machine.snapshot(self._number_of(stream))
        self._recorded_at = time.perf_counter()  # submitted work is done already

    def synchronize(self) -> None:
        """Let the host wait for the event."""
        self._machine.host_waits(self._clock, "Event.synchronize")

    def wait(self, stream: "SimulatedStream | None" = None) -> None:
        """Let a stream wait for the event."""
        self._machine.stream_waits(self._number_of(stream), self._clock)

    def elapsed_time(self, end: "SimulatedEvent") -> float:
        """Return the milliseconds from this event to a later one."""
        return 1000 * (end._recorded_at - self._recorded_at)

    def query(self) -> bool:
        """Return whether the host has waited for all work before the event."""
        host = self._machine.host_clock
        return all(host.get(stream, 0) >= work for stream, work in self._clock.items())

    def _number_of(self, stream: "SimulatedStream | None") -> int:
        machine = self._machine
        return machine.current_streams[machine.current_device] if stream is None else stream.number


class SimulatedStream:
    """A queue of work on a device, like torch.cuda.Stream."""

    def __init__(self, machine: Machine, number: int) -> None:
        self._machine, self.number = machine, number
        self.device = torch.device(DEVICE_TYPE, machine.device_by_stream[number])

    def record_event(self, event: SimulatedEvent | None = None) -> SimulatedEvent:
        """Record an event after all work so far, and return it."""
        event = event or SimulatedEvent(self._machine)
        event.record(self)
        return event

    def wait_event(self, event: SimulatedEvent) -> None:
        """Start later work after an event."""
        event.wait(self)

    def wait_stream(self, other: "SimulatedStream") -> None:
        """Start later work after all work of another stream so far."""
        self._machine.stream_waits(self.number, self._machine.snapshot(other.number))

    def is_capturing(self) -> bool:
        """Return whether a graph is being captured, on any stream."""
        return self._machine.recording is not None

    def synchronize(self) -> None:
        """Let the host wait for all work so far."""
        self._machine.host_waits(self._machine.snapshot(self.number), "Stream.synchronize")


@dataclass
class _CapturedOperation:
    func: Any
    args: Any
    kwargs: dict[str, Any]
    results: list[Tensor]


class SimulatedGraph:
    """Captured work that every replay repeats, like torch.cuda.CUDAGraph.

    Capturing computes each operation, to find the shape of its result. The end of the capture
    restores memory that existed before, and fills the graph's own memory with poison until the
    first replay.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.reset()

    def reset(self) -> None:
        """Discard the captured work."""
        self._operations: list[_CapturedOperation] = []
        # By storage:
        self._saved: dict[Any, Any] = {}  # the contents of existing memory before the capture
        self._own: dict[Any, Tensor] = {}  # memory that the graph allocates
        self._read: dict[Any, Tensor] = {}  # existing memory that the graph reads
        self._written: dict[Any, Tensor] = {}  # existing memory that the graph writes to

    def capture_begin(self, **options: Any) -> None:
        """Capture the work that follows instead of doing it."""
        self._machine.recording = self
        self._device = self._machine.current_device
        self._generator_before = torch.default_generator.get_state()

    def capture_end(self) -> None:
        """Stop capturing and restore memory and the random number generator."""
        self._machine.recording = None
        torch.default_generator.set_state(self._generator_before)
        for storage, before in self._saved.items():
            storage.copy_(before)
        self._saved.clear()
        for tensor in self._own.values():
            poison_(tensor)

    def before_operation(self, func: Any, args: Any, written: list[Tensor]) -> None:
        """Save the memory that an operation is about to write to."""
        indices = [index for index in _UNDECLARED_WRITES.get(func, ()) if index < len(args)]
        undeclared = [args[index] for index in indices if args[index] is not None]
        for tensor in [*written, *undeclared]:
            storage = tensor.untyped_storage()
            if storage not in self._own:
                self._written.setdefault(storage, tensor)
                if storage not in self._saved:
                    self._saved[storage] = storage.clone()

    def after_operation(
        self, func: Any, args: Any, kwargs: dict[str, Any], result: Any, launches_kernel: bool
    ) -> None:
        """Capture an operation. Only operations that launch a kernel are replayed."""
        inputs = [value for value in leaves((args, kwargs)) if isinstance(value, Tensor)]
        input_storages = {tensor.untyped_storage() for tensor in inputs}
        results = [value for value in leaves(result) if isinstance(value, Tensor)]
        for tensor in results:
            if tensor.untyped_storage() not in input_storages:
                self._own.setdefault(tensor.untyped_storage(), tensor)
        for tensor in inputs:
            if tensor.untyped_storage() not in self._own:
                self._read.setdefault(tensor.untyped_storage(), tensor)
        if launches_kernel:
            self._operations.append(_CapturedOperation(func, args, kwargs, results))

    def replay(self) -> None:
        """Repeat the captured work as one launch on the current stream."""
        machine = self._machine
        machine.record.launches["replay of a graph"] += 1
        reads = [t for storage, t in self._read.items() if storage not in self._written]
        machine.submit("a graph", self._device, reads, list(self._written.values()))
        with _disable_current_modes(), torch.no_grad():
            for operation in self._operations:
                _repeat(operation)


class DeviceModule(types.ModuleType):
    """The device functions that torch calls; they are named as in torch.cuda and do the same."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(f"torch.{DEVICE_TYPE}")
        self._machine = machine
        self.default_generators = (torch.default_generator,) * DEVICES

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing: random numbers are the CPU's, and seeded there."""

    def device_count(self) -> int:
        return DEVICES

    def current_device(self) -> int:
        return self._machine.current_device

    def set_device(self, device: Any) -> None:
        self._machine.current_device = self._index(device)

    def Stream(self, device: Any = None) -> SimulatedStream:  # noqa: N802
        return SimulatedStream(self._machine, self._machine.new_stream(self._index(device)))

    def Event(self, enable_timing: bool = False) -> SimulatedEvent:  # noqa: N802
        return SimulatedEvent(self._machine)

    def current_stream(self, device: Any = None) -> SimulatedStream:
        return SimulatedStream(self._machine, self._machine.current_streams[self._index(device)])

    def stream(self, stream: SimulatedStream) -> AbstractContextManager[None]:
        return self._machine.on_stream(stream.number)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        previous = self._machine.current_device
        self.set_device(device)
        try:
            yield
        finally:
            self._machine.current_device = previous

    def synchronize(self, device: Any = None) -> None:
        self._machine.host_waits_for_device(self._index(device), "synchronize")

    def CUDAGraph(self) -> SimulatedGraph:  # noqa: N802
        return SimulatedGraph(self._machine)

    @contextmanager
    def graph(
        self, graph: SimulatedGraph, stream: SimulatedStream, **options: Any
    ) -> Iterator[None]:
        self.synchronize()
        with self.stream(stream):
            graph.capture_begin(**options)
            try:
                yield
            finally:
                graph.capture_end()

    def set_sync_debug_mode(self, mode: str) -> None:
        """Warn whenever the host waits, if the mode is `warn`; otherwise do not."""
        self._machine.warns_of_waits = mode == "warn"

    def empty_cache(self) -> None:
        """Do nothing: there is no cache."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        memory = self._memory(device)
        return memory.limit_bytes - memory.used_bytes, memory.limit_bytes

    def memory_allocated(self, device: Any = None) -> int:
        return self._memory(device).used_bytes

    def max_memory_allocated(self, device: Any = None) -> int:
        return self._memory(device).peak_bytes

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        memory = self._memory(device)
        memory.peak_bytes = memory.used_bytes

    def get_device_properties(self, device: Any = None) -> types.SimpleNamespace:
        total = self._memory(device).limit_bytes
        return types.SimpleNamespace(name=DEVICE_NAME, total_memory=total)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _memory(self, device: Any) -> DeviceMemory:
        return self._machine.memories[self._index(device)]

    def _index(self, device: Any) -> int:
        """Return the index of a device given as None, a number, a name or a torch.device."""
        if isinstance(device, int):
            return device
        index = None if device is None else torch.device(device).index
        return self._machine.current_device if index is None else index


def _repeat(operation: _CapturedOperation) -> None:
    """Compute an operation again, with its results in the same memory."""
    result = operation.func(*operation.args, **operation.kwargs)
    tensors = [value for value in leaves(result) if isinstance(value, Tensor)]
    for new, captured in zip(tensors, operation.results, strict=True):
        if new.untyped_storage() is not captured.untyped_storage():
            captured.copy_(new)
