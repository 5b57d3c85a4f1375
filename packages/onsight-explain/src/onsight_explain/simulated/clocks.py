"""Which work of which stream is sure to be done before which other: vector clocks.

Source: Mattern, "Virtual time and global states of distributed systems" (1989).
"""

from dataclasses import dataclass, field

Clock = dict[int, int]  # the number of the last piece of work known to be done, for each stream


def merge(clock: Clock, other: Clock) -> None:
    """Take in what another clock knows."""
    for stream, done in other.items():
        if clock.get(stream, 0) < done:
            clock[stream] = done


def knows(clock: Clock, stream: int, work: int) -> bool:
    """Whether a piece of a stream's work is done by then."""
    return clock.get(stream, 0) >= work


@dataclass
class Uses:
    """Who used a piece of memory last: the work of each stream that read it, and that wrote it."""

    allocated_on: int
    written: tuple[int, int] | None = None
    read: Clock = field(default_factory=dict)
    kept_for: set[int] = field(default_factory=set)  # streams named by record_stream

    def unfinished_before(self, clock: Clock, writes: bool) -> int | None:
        """A stream whose use must end before this one and is not known to; None if all is well."""
        if self.written and not knows(clock, *self.written):
            return self.written[0]
        if writes:
            return next((s for s, work in self.read.items() if not knows(clock, s, work)), None)
        return None

    def add(self, stream: int, work: int, writes: bool) -> None:
        """Note a use by a stream's piece of work."""
        if writes:
            self.written, self.read = (stream, work), {}
        else:
            self.read[stream] = work

    def in_use_elsewhere(self, clock: Clock) -> int | None:
        """A stream, other than the allocating one and those named, that may still use it."""
        last = {**self.read, **(dict([self.written]) if self.written else {})}
        others = set(last) - {self.allocated_on} - self.kept_for
        return next((one for one in others if not knows(clock, one, last[one])), None)
