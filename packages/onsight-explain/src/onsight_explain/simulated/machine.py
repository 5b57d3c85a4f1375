"""The state of the twin: devices, streams, what the host knows, memory, and what was seen."""

import itertools
import warnings
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onsight_explain.simulated.clocks import Clock, Uses, knows, merge
from onsight_explain.simulated.record import Record, user_line

NAME = "twin"
DEVICES = 2


class RaceError(RuntimeError):
    """Work used memory that another stream's work may not be done with."""


@dataclass(eq=False)  # two tensors are the same if they are one
class _HostCopy:
    """A copy to the host that has not ended: what is there now is poison."""

    target: Tensor
    value: Tensor
    stream: int
    work: int


@dataclass(eq=False)
class _PinnedRead:
    """A copy from page-locked memory that has not ended: the memory must stay as it is."""

    source: Tensor
    value: Tensor
    stream: int
    work: int
    place: str


class Memory:
    """Bytes of a device: in use, at most, and the limit. fail_at: the allocation that fails."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = self.peak_bytes = self.allocations = 0
        self.fail_at: int | None = None

    def allocate(self, count: int) -> None:
        """Take bytes. Raises torch.OutOfMemoryError."""
        self.allocations += 1
        is_too_much = self.used_bytes + count > self.limit_bytes
        self.used_bytes += count
        if is_too_much or self.allocations == self.fail_at:
            raise torch.OutOfMemoryError(
                f"{NAME} out of memory. Tried to allocate {count / 2**20:.2f} MiB"
            )
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def free(self, count: int) -> None:
        """Give bytes back."""
        self.used_bytes -= count


class Machine:
    """Two devices that compute on the CPU's memory, in the order in which they are told to.

    What a GPU would do later is done at once; clocks tell what would be sure to be done by then.
    """

    def __init__(self, limit_bytes: int = 2**30) -> None:
        self.record = Record()
        self.memories = [Memory(limit_bytes) for _ in range(DEVICES)]
        self.current_device = 0
        self.device_of = {number: number for number in range(DEVICES)}  # of each stream
        self.current_streams = {number: number for number in range(DEVICES)}  # of each device
        self.clocks: dict[int, Clock] = defaultdict(dict)
        self.host: Clock = {}
        self._host_waits = 0  # so far, and before the last work of each stream
        self._host_waits_before: dict[int, int] = {}
        self.late_error: RuntimeError | None = None
        self.recording: Any = None  # the TwinGraph that records what is done
        self.warns_of_waits = False
        self._uses: weakref.WeakKeyDictionary[Any, Uses] = weakref.WeakKeyDictionary()
        self._host_copies: list[_HostCopy] = []
        self._pinned_reads: list[_PinnedRead] = []
        self._ids: Iterator[int] = itertools.count(DEVICES)

    def reset(self) -> None:
        """Forget what was seen, and what has not ended; memory in use stays accounted for."""
        self.record.clear()
        self._host_copies.clear()
        self._pinned_reads.clear()

    # streams

    def new_stream(self, device: int) -> int:
        """A further stream of a device."""
        stream = next(self._ids)
        self.device_of[stream] = device
        return stream

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        """Give work of the stream's device to it."""
        device = self.device_of[stream]
        former_stream, former_device = self.current_streams[device], self.current_device
        self.current_streams[device], self.current_device = stream, device
        try:
            yield
        finally:
            self.current_streams[device], self.current_device = former_stream, former_device

    def snapshot(self, stream: int) -> Clock:
        """What is done when all work given to a stream so far is."""
        return dict(self.clocks[stream])

    def stream_waits(self, stream: int, clock: Clock) -> None:
        """Later work of a stream starts after this."""
        merge(self.clocks[stream], clock)

    def host_waits(self, clock: Clock, cause: str) -> None:
        """The host waits until this is done: copies to it have ended."""
        self.refuse_while_recording(cause)
        if self.warns_of_waits and cause != "Event.synchronize":  # as torch.cuda does
            warnings.warn(f"called a synchronizing operation: {cause}", stacklevel=2)
        self.record.wait(cause)
        merge(self.host, clock)
        self._host_waits += 1
        for copy in [one for one in self._host_copies if knows(self.host, one.stream, one.work)]:
            copy.target.copy_(copy.value)
            self._host_copies.remove(copy)
        for read in [one for one in self._pinned_reads if knows(self.host, one.stream, one.work)]:
            self._check_pinned(read)
            self._pinned_reads.remove(read)

    def host_waits_for_device(self, device: int, cause: str) -> None:
        """The host waits for all streams of a device."""
        for stream, of in list(self.device_of.items()):
            if of == device:
                merge(self.host, self.clocks[stream])
        self.host_waits({}, cause)

    def refuse_while_recording(self, what: str) -> None:
        """Raise RuntimeError if a graph is being recorded, which has no place for this."""
        if self.recording:
            self._fail(RuntimeError(f"operation not permitted when stream is capturing: {what}"))

    # work

    def work(self, name: str, device: int, reads: list[Tensor], writes: list[Tensor]) -> int:
        """A launch on the device's current stream. Raises RaceError; returns its number."""
        stream = self.current_streams[device]
        clock = self.clocks[stream]
        if self._host_waits_before.get(stream) != self._host_waits:
            merge(clock, self.host)
            self._host_waits_before[stream] = self._host_waits
        number = clock[stream] = clock.get(stream, 0) + 1
        for tensors, is_write in ((reads, False), (writes, True)):
            for tensor in tensors:
                uses = self._uses[tensor.untyped_storage()]
                other = uses.unfinished_before(clock, is_write)
                if other is not None:
                    self._fail(_race(name, stream, other, is_write))
                uses.add(stream, number, is_write)
        return number

    def _fail(self, error: RuntimeError) -> None:
        """Raise an error; within backward, at its end: torch's engine does not survive it there."""
        if torch._C._current_graph_task_id() == -1:
            raise error
        self.late_error = self.late_error or error

    def raise_late(self) -> None:
        """Raise what happened within backward."""
        error, self.late_error = self.late_error, None
        if error:
            raise error

    def copy_to_host(self, value: Tensor, device: int, work: int) -> Tensor:
        """A copy that has not ended: a tensor that holds poison until the host waits for it."""
        target = _poison(value)
        stream = self.current_streams[device]
        self._host_copies.append(_HostCopy(target, value.clone(), stream, work))
        return target

    def copy_into_host(self, target: Tensor, value: Tensor, device: int, work: int) -> None:
        """The same into memory that is there already."""
        target.copy_(_poison(value))
        stream = self.current_streams[device]
        self._host_copies.append(_HostCopy(target, value.clone(), stream, work))

    def read_pinned(self, source: Tensor, device: int, work: int) -> None:
        """A copy from page-locked memory has begun: it must not change until the copy has ended."""
        stream = self.current_streams[device]
        self._pinned_reads.append(_PinnedRead(source, source.clone(), stream, work, user_line()))

    def check(self) -> None:
        """Raise AssertionError if there were faults."""
        faults = self.faults()
        assert not faults, "; ".join(faults)

    def faults(self) -> list[str]:
        """Look at all that has not ended; returns every fault so far."""
        for read in self._pinned_reads:
            self._check_pinned(read)
        return self.record.faults

    def _check_pinned(self, read: _PinnedRead) -> None:
        if not torch.equal(read.source, read.value):
            self.record.faults.append(
                f"page-locked memory was changed before its copy had ended ({read.place})"
            )

    # memory

    def hold(self, tensor: Tensor, device: int) -> None:
        """Account for a tensor's memory until it is freed. Raises torch.OutOfMemoryError."""
        storage = tensor.untyped_storage()
        if storage in self._uses:
            return
        count = storage.nbytes()
        uses = self._uses[storage] = Uses(self.current_streams[device])
        weakref.finalize(storage, self._free, uses, count, device).atexit = False
        try:
            self.memories[device].allocate(count)
        except torch.OutOfMemoryError as error:
            self._fail(error)

    def wrote(self, tensor: Tensor, stream: int, work: int) -> None:
        """Note the work that made a tensor."""
        self._uses[tensor.untyped_storage()].add(stream, work, writes=True)

    def keep_for(self, tensor: Tensor, stream: int) -> None:
        """Do not give memory away before a stream is done with it: record_stream."""
        self._uses[tensor.untyped_storage()].kept_for.add(stream)

    def _free(self, uses: Uses, count: int, device: int) -> None:
        self.memories[device].free(count)
        clock = dict(self.clocks[uses.allocated_on])
        merge(clock, self.host)
        other = uses.in_use_elsewhere(clock)
        if other is not None:
            self.record.faults.append(
                f"memory was freed while stream {other} may still use it: record_stream is missing"
            )


def _race(name: str, stream: int, other: int, is_write: bool) -> RaceError:
    how = "writes" if is_write else "reads"
    return RaceError(
        f"{name} on stream {stream} {how} memory that stream {other} may not be done with: wait "
        f"for an event of it ({user_line()})"
    )


def _poison(value: Tensor) -> Tensor:
    return poison_(value.clone())


def poison_(tensor: Tensor) -> Tensor:
    """Put values into a tensor that no computation survives unseen."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.fill_(float("nan"))
    if tensor.dtype is torch.bool:
        return tensor.logical_not_()
    return tensor.fill_(torch.iinfo(tensor.dtype).max)
