"""The state of the simulated device: streams and their clocks, memory, and a record of faults.

Vector clocks decide which work is guaranteed to finish before other work: Mattern, "Virtual time
and global states of distributed systems" (1989).
"""

import itertools
import sys
import sysconfig
import warnings
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DEVICE_TYPE = "simulated"
DEVICES = 2

_LIBRARIES = (
    str(Path(torch.__file__).parent),
    sysconfig.get_path("stdlib"),
    str(Path(__file__).parent),
)

# Maps each stream to its last work item known to have finished; a stream's items are numbered.
Clock = dict[int, int]


class RaceError(RuntimeError):
    """Memory was used while another stream may still be using it."""


@dataclass(frozen=True)
class Wait:
    """The host waited for the device."""

    cause: str  # the operation that waited
    place: str  # FILE:LINE of the user's code

    def __str__(self) -> str:
        return f"{self.place}: {self.cause}"


@dataclass
class DeviceRecord:
    """The launches, waits and faults on all devices."""

    launches: Counter[str] = field(default_factory=Counter)  # number per operation
    waits: list[Wait] = field(default_factory=list)  # in order
    faults: list[str] = field(default_factory=list)  # Machine.check raises if there are any

    def clear(self) -> None:
        """Remove all entries."""
        self.launches.clear()
        self.waits.clear()
        self.faults.clear()


@dataclass
class MemoryUses:
    """The last write to a piece of memory and the reads since."""

    allocated_on: int  # stream
    written: tuple[int, int] | None = None  # stream and work item of the last write
    read: Clock = field(default_factory=dict)  # each stream's last read since that write
    kept_for: set[int] = field(default_factory=set)  # streams named by record_stream

    def add(self, stream: int, work: int, is_write: bool) -> None:
        """Record a use by a stream's work."""
        if is_write:
            self.written, self.read = (stream, work), {}
        else:
            self.read[stream] = work

    def find_conflict(self, clock: Clock, is_write: bool) -> int | None:
        """Return a stream with an unfinished use that this use must wait for, or None."""
        if self.written and not _is_done(clock, *self.written):
            return self.written[0]
        if is_write:
            return next((s for s, work in self.read.items() if not _is_done(clock, s, work)), None)
        return None

    def find_other_user(self, clock: Clock) -> int | None:
        """Return a stream that may still use the memory, or None.

        The allocating stream and those in kept_for are ignored: the allocator waits for them.
        """
        last = dict([self.written]) if self.written else {}
        last |= self.read  # every read is later than the write
        others = set(last) - {self.allocated_on} - self.kept_for
        return next((s for s in others if not _is_done(clock, s, last[s])), None)


class DeviceMemory:
    """The bytes of a device: in use now, the peak, and the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = self.peak_bytes = self.allocations = 0
        self.fail_at: int | None = None  # number of the allocation to fail, from 1; set by tests

    def allocate(self, count: int) -> None:
        """Allocate bytes. Raises torch.OutOfMemoryError."""
        self.allocations += 1
        is_too_much = self.used_bytes + count > self.limit_bytes
        # Counted even if it fails, because the storage exists and will be freed.
        self.used_bytes += count
        if is_too_much or self.allocations == self.fail_at:
            raise torch.OutOfMemoryError(
                f"{DEVICE_TYPE} out of memory. Tried to allocate {count / 2**20:.2f} MiB"
            )
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)


@dataclass(eq=False)  # tensors have no truth value to compare by
class _HostCopy:
    """A copy to the host that may not be finished; until then the target contains poison."""

    target: Tensor
    value: Tensor
    stream: int
    work: int


@dataclass(eq=False)
class _PinnedRead:
    """A copy that may be unfinished, from page-locked memory that may not change until it is."""

    source: Tensor
    value: Tensor
    stream: int
    work: int
    place: str


class Machine:
    """Two devices that compute in the CPU's memory.

    Work is done immediately, in the order of submission. Clocks record which of it would be
    guaranteed to be done on a real GPU, whose streams run concurrently with each other and with
    the host.
    """

    def __init__(self, limit_bytes: int = 2**30) -> None:
        self.record = DeviceRecord()
        self.memories = [DeviceMemory(limit_bytes) for _ in range(DEVICES)]
        self.current_device = 0
        # The default stream of a device has the device's index as its number.
        self.device_by_stream = {index: index for index in range(DEVICES)}
        self.current_streams = {index: index for index in range(DEVICES)}  # by device
        self.clocks: dict[int, Clock] = defaultdict(dict)  # by stream
        self.host_clock: Clock = {}  # device work that the host has waited for
        self._host_waits = 0  # number of times the host has waited
        self._host_waits_before: dict[int, int] = {}  # that number at each stream's latest work
        self._error_in_backward: RuntimeError | None = None
        self.recording: Any = None  # the SimulatedGraph that captures work
        self.warns_of_waits = False
        self._uses: weakref.WeakKeyDictionary[Any, MemoryUses] = weakref.WeakKeyDictionary()
        self._host_copies: list[_HostCopy] = []
        self._pinned_reads: list[_PinnedRead] = []
        self._stream_numbers: Iterator[int] = itertools.count(DEVICES)

    def reset(self) -> None:
        """Clear the record and drop unfinished copies. Memory in use still counts."""
        self.record.clear()
        self._host_copies.clear()
        self._pinned_reads.clear()

    # Faults

    def check(self) -> None:
        """Raise AssertionError if there were faults."""
        faults = self.faults()
        assert not faults, "; ".join(faults)

    def faults(self) -> list[str]:
        """Check unfinished copies from page-locked memory, and return all faults so far."""
        for read in self._pinned_reads:
            self._check_pinned(read)
        return self.record.faults

    # Streams and waits

    def new_stream(self, device: int) -> int:
        """Return the number of a new stream of a device."""
        stream = next(self._stream_numbers)
        self.device_by_stream[stream] = device
        return stream

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        """Submit work of the stream's device to this stream."""
        device = self.device_by_stream[stream]
        previous_stream, previous_device = self.current_streams[device], self.current_device
        self.current_streams[device], self.current_device = stream, device
        try:
            yield
        finally:
            self.current_streams[device], self.current_device = previous_stream, previous_device

    def snapshot(self, stream: int) -> Clock:
        """Return the clock of a stream after all work submitted to it so far."""
        return dict(self.clocks[stream])

    def stream_waits(self, stream: int, clock: Clock) -> None:
        """Let later work of a stream start only after the work in a clock."""
        _merge(self.clocks[stream], clock)

    def host_waits(self, clock: Clock, cause: str) -> None:
        """Let the host wait for the work in a clock, and finish the copies to the host in it."""
        self.refuse_while_recording(cause)
        if self.warns_of_waits and cause != "Event.synchronize":  # as torch.cuda does
            warnings.warn(f"called a synchronizing operation: {cause}", stacklevel=2)
        self.record.waits.append(Wait(cause, user_line()))
        _merge(self.host_clock, clock)
        self._host_waits += 1
        for copy in [c for c in self._host_copies if _is_done(self.host_clock, c.stream, c.work)]:
            copy.target.copy_(copy.value)
            self._host_copies.remove(copy)
        for read in [r for r in self._pinned_reads if _is_done(self.host_clock, r.stream, r.work)]:
            self._check_pinned(read)
            self._pinned_reads.remove(read)

    def host_waits_for_device(self, device: int, cause: str) -> None:
        """Let the host wait for all streams of a device."""
        clock: Clock = {}
        for stream, stream_device in self.device_by_stream.items():
            if stream_device == device:
                _merge(clock, self.clocks[stream])
        self.host_waits(clock, cause)

    def refuse_while_recording(self, operation: str) -> None:
        """Raise RuntimeError if a graph is being captured, which cannot contain the operation."""
        if self.recording:
            self._fail(
                RuntimeError(f"operation not permitted when stream is capturing: {operation}")
            )

    # Work

    def submit(self, name: str, device: int, reads: list[Tensor], writes: list[Tensor]) -> int:
        """Submit work to the device's current stream and return its number. Raises RaceError."""
        stream = self.current_streams[device]
        clock = self.clocks[stream]
        if self._host_waits_before.get(stream) != self._host_waits:
            _merge(clock, self.host_clock)
            self._host_waits_before[stream] = self._host_waits
        number = clock[stream] = clock.get(stream, 0) + 1
        for tensors, is_write in ((reads, False), (writes, True)):
            for tensor in tensors:
                uses = self._uses[tensor.untyped_storage()]
                other = uses.find_conflict(clock, is_write)
                if other is not None:
                    self._fail(_make_race_error(name, stream, other, is_write))
                uses.add(stream, number, is_write)
        return number

    def copy_to_host(self, target: Tensor, value: Tensor, device: int, work: int) -> None:
        """Start a copy into memory, which contains poison until the host waits for the copy."""
        target.copy_(poison_(value.clone()))
        stream = self.current_streams[device]
        self._host_copies.append(_HostCopy(target, value.clone(), stream, work))

    def read_pinned(self, source: Tensor, device: int, work: int) -> None:
        """Start a copy from page-locked memory, which may not change until the copy is done."""
        stream = self.current_streams[device]
        self._pinned_reads.append(_PinnedRead(source, source.clone(), stream, work, user_line()))

    def raise_error_in_backward(self) -> None:
        """Raise the first error of a backward pass, after its end."""
        error, self._error_in_backward = self._error_in_backward, None
        if error:
            raise error

    # Memory

    def track_memory(self, tensor: Tensor, device: int) -> None:
        """Account for a tensor's memory until it is freed. Raises torch.OutOfMemoryError."""
        storage = tensor.untyped_storage()
        if storage in self._uses:
            return
        count = storage.nbytes()
        uses = self._uses[storage] = MemoryUses(self.current_streams[device])
        weakref.finalize(storage, self._free, uses, count, device).atexit = False
        try:
            self.memories[device].allocate(count)
        except torch.OutOfMemoryError as error:
            self._fail(error)

    def add_write(self, tensor: Tensor, stream: int, work: int) -> None:
        """Record the work item that created a tensor."""
        self._uses[tensor.untyped_storage()].add(stream, work, is_write=True)

    def keep_for(self, tensor: Tensor, stream: int) -> None:
        """Keep memory until a stream is done with it, as Tensor.record_stream requests."""
        self._uses[tensor.untyped_storage()].kept_for.add(stream)

    def _check_pinned(self, read: _PinnedRead) -> None:
        if not torch.equal(read.source, read.value):
            self.record.faults.append(
                f"page-locked memory was changed before its copy had ended ({read.place})"
            )

    def _free(self, uses: MemoryUses, count: int, device: int) -> None:
        self.memories[device].used_bytes -= count
        clock = dict(self.clocks[uses.allocated_on])
        _merge(clock, self.host_clock)
        other = uses.find_other_user(clock)
        if other is not None:
            self.record.faults.append(
                f"memory was freed while stream {other} may still use it: record_stream is missing"
            )

    def _fail(self, error: RuntimeError) -> None:
        """Raise an error; within backward, only save it, because torch's engine would crash."""
        if torch._C._current_graph_task_id() == -1:
            raise error
        self._error_in_backward = self._error_in_backward or error


def user_line() -> str:
    """Return FILE:LINE of the innermost frame outside torch, the stdlib and this package."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith((*_LIBRARIES, "<")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def poison_(tensor: Tensor) -> Tensor:
    """Fill a tensor with values that show up in the result of any computation."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.fill_(float("nan"))
    if tensor.dtype is torch.bool:
        return tensor.logical_not_()
    return tensor.fill_(torch.iinfo(tensor.dtype).max)


def _merge(clock: Clock, other: Clock) -> None:
    """Advance a clock to include another one."""
    for stream, done in other.items():
        if clock.get(stream, 0) < done:
            clock[stream] = done


def _is_done(clock: Clock, stream: int, work: int) -> bool:
    return clock.get(stream, 0) >= work


def _make_race_error(name: str, stream: int, other: int, is_write: bool) -> RaceError:
    verb = "writes" if is_write else "reads"
    return RaceError(
        f"{name} on stream {stream} {verb} memory that stream {other} may not be done with: wait "
        f"for an event of that stream ({user_line()})"
    )
