"""Discrete-event simulation: a queue of events, shared resources, and processes that wait.

A process is a generator. It yields a function, which is given the action to call when the wait is
over:

    def worker():
        yield cores.use(2.0)        # two seconds of one core, longer if others use it too
        yield barrier.arrive()      # until all have arrived

simpy has processes and queues, but no resource that its users share evenly. Several ranks on the
same cores need just that, so this is plain Python.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Generator

Action = Callable[[], object]
Wait = Callable[[Action], object]
Process = Generator[Wait, None, None]


class Events:
    """The event queue; `now` is the simulated time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Action]] = []
        self._number = itertools.count()

    def after(self, seconds: float, action: Action) -> None:
        """Schedule an action; actions that are due at the same time run in order of scheduling."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._number), action))

    def run(self) -> None:
        """Run until the queue is empty."""
        while self._queue:
            self.now, _, action = heapq.heappop(self._queue)
            action()

    def start(self, process: Process) -> None:
        """Run a process up to its first wait, and resume it after each wait."""
        begin = next(process, None)
        if begin:
            begin(lambda: self.start(process))

    def sleep(self, seconds: float) -> Wait:
        """Wait for a number of seconds."""
        return lambda then: self.after(seconds, then)


class Shared:
    """A number of cores, GPUs or links that concurrent users share evenly.

    crowded: the speed of each when all are busy, relative to its speed when it alone is busy.
    overfull: a further factor when users want more than there are.
    """

    def __init__(
        self, events: Events, count: float, crowded: float = 1.0, overfull: float = 1.0
    ) -> None:
        self.events, self.count = events, count
        self.crowded, self.overfull = crowded, overfull
        self._users: list[tuple[float, int, float, Action]] = []  # by progress at the finish
        self._number = itertools.count()
        self._wanted = 0.0  # by all current users together
        self._progress = 0.0  # seconds of use by a user present since the start
        self._updated_at = 0.0  # time of the last update of the progress
        self._due = 0  # number of the latest scheduled finish; earlier ones are ignored

    def use(self, seconds: float, width: float = 1.0) -> Wait:
        """Wait for a number of seconds of work, spread over up to `width` units."""

        def begin(then: Action) -> None:
            self._advance()
            end = self._progress + seconds / width
            heapq.heappush(self._users, (end, next(self._number), width, then))
            self._wanted += width
            self._schedule()

        return begin

    def _speed(self) -> float:
        """Progress per second: every user gets the same share of what it wants."""
        busy = min(self._wanted, self.count)
        load = (busy - 1) / (self.count - 1) if busy > 1 else 0.0
        speed = 1 - (1 - self.crowded) * load
        if self._wanted > self.count:
            speed *= self.overfull
        return busy / self._wanted * speed

    def _advance(self) -> None:
        if self._users:
            self._progress += (self.events.now - self._updated_at) * self._speed()
        self._updated_at = self.events.now

    def _schedule(self) -> None:
        self._due += 1
        if self._users:
            number, left = self._due, max(0.0, self._users[0][0] - self._progress)
            self.events.after(left / self._speed(), lambda: self._finish(number))

    def _finish(self, number: int) -> None:
        """Remove users that are done, unless users came or went since this was scheduled."""
        if number != self._due:
            return
        self._advance()
        self._progress = max(self._progress, self._users[0][0])  # despite rounding
        while self._users and self._users[0][0] <= self._progress:
            _, _, width, then = heapq.heappop(self._users)
            self._wanted = self._wanted - width if self._users else 0.0
            self.events.after(0.0, then)
        self._schedule()


class Barrier:
    """A number of processes wait for each other, and continue some seconds after the last."""

    def __init__(self, events: Events, size: int) -> None:
        self.events, self.size = events, size
        self._waiting: list[Action] = []

    def arrive(self, seconds: float = 0.0) -> Wait:
        """Wait for all others, then for the seconds that they need together."""

        def begin(then: Action) -> None:
            self._waiting.append(then)
            if len(self._waiting) == self.size:
                waiting, self._waiting = self._waiting, []
                for action in waiting:
                    self.events.after(seconds, action)

        return begin


class Semaphore:
    """A counting semaphore: one process acquires a slot or waits for it, another releases it."""

    def __init__(self, events: Events, free: int) -> None:
        self.events, self._free = events, free
        self._waiting: deque[Action] = deque()

    def acquire(self) -> Wait:
        """Wait for a free slot and take it."""

        def begin(then: Action) -> None:
            if self._free:
                self._free -= 1
                self.events.after(0.0, then)
            else:
                self._waiting.append(then)

        return begin

    def release(self) -> None:
        """Free a slot."""
        if self._waiting:
            self.events.after(0.0, self._waiting.popleft())
        else:
            self._free += 1


def spread(mean: float, deviation: float, normal: float) -> float:
    """A log-normal duration with this mean and relative deviation, from a standard normal draw."""
    if deviation == 0:
        return mean
    variance = math.log1p(deviation**2)
    return mean * math.exp(normal * math.sqrt(variance) - variance / 2)
