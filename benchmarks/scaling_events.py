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
    """What happens when; `now` is the simulated time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Action]] = []
        self._number = itertools.count()

    def after(self, seconds: float, action: Action) -> None:
        """Let something happen in so many seconds; what is due at once keeps its order."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._number), action))

    def run(self) -> None:
        """Let everything happen."""
        while self._queue:
            self.now, _, action = heapq.heappop(self._queue)
            action()

    def start(self, process: Process) -> None:
        """Let a process run up to its first wait, and from each wait to the next."""
        begin = next(process, None)
        if begin:
            begin(lambda: self.start(process))

    def sleep(self, seconds: float) -> Wait:
        """A wait of so many seconds."""
        return lambda then: self.after(seconds, then)


class Shared:
    """So many cores, GPUs or links, shared evenly by all who use them at the same time.

    crowded: the speed of each if all are in use, as a share of its speed if it is in use alone;
    overfull: what is left of that if more are wanted than there are.
    """

    def __init__(
        self, events: Events, count: float, crowded: float = 1.0, overfull: float = 1.0
    ) -> None:
        self.events, self.count = events, count
        self.crowded, self.overfull = crowded, overfull
        self._users: list[tuple[float, int, float, Action]] = []  # by the progress they end at
        self._number = itertools.count()
        self._wanted = 0.0  # how much of the count all users want together
        self._progress = 0.0  # seconds of use by a user that has been here all along
        self._looked_at = 0.0
        self._due = 0  # number of the latest scheduled end; earlier ones are ignored

    def use(self, seconds: float, width: float = 1.0) -> Wait:
        """A wait for so many seconds of work, on up to `width` of the count at once."""

        def begin(then: Action) -> None:
            self._advance()
            end = self._progress + seconds / width
            heapq.heappush(self._users, (end, next(self._number), width, then))
            self._wanted += width
            self._schedule()

        return begin

    def _speed(self) -> float:
        """Progress a second: all have the same share of what they want."""
        busy = min(self._wanted, self.count)
        load = (busy - 1) / (self.count - 1) if busy > 1 else 0.0
        speed = 1 - (1 - self.crowded) * load
        if self._wanted > self.count:
            speed *= self.overfull
        return busy / self._wanted * speed

    def _advance(self) -> None:
        if self._users:
            self._progress += (self.events.now - self._looked_at) * self._speed()
        self._looked_at = self.events.now

    def _schedule(self) -> None:
        self._due += 1
        if self._users:
            number, left = self._due, max(0.0, self._users[0][0] - self._progress)
            self.events.after(left / self._speed(), lambda: self._end(number))

    def _end(self, number: int) -> None:
        """End the users that have had their work, unless others came or went meanwhile."""
        if number != self._due:
            return
        self._advance()
        self._progress = max(self._progress, self._users[0][0])  # in spite of rounding
        while self._users and self._users[0][0] <= self._progress:
            _, _, width, then = heapq.heappop(self._users)
            self._wanted = self._wanted - width if self._users else 0.0
            self.events.after(0.0, then)
        self._schedule()


class Barrier:
    """Where so many processes wait for each other; all go on some seconds after the last came."""

    def __init__(self, events: Events, size: int) -> None:
        self.events, self.size = events, size
        self._waiting: list[Action] = []

    def arrive(self, seconds: float = 0.0) -> Wait:
        """A wait for all others, and for the seconds that they then need together."""

        def begin(then: Action) -> None:
            self._waiting.append(then)
            if len(self._waiting) == self.size:
                waiting, self._waiting = self._waiting, []
                for action in waiting:
                    self.events.after(seconds, action)

        return begin


class Places:
    """Places for batches: a process takes one or waits for it, another gives it back."""

    def __init__(self, events: Events, free: int) -> None:
        self.events, self._free = events, free
        self._waiting: deque[Action] = deque()

    def take(self) -> Wait:
        """A wait for a free place."""

        def begin(then: Action) -> None:
            if self._free:
                self._free -= 1
                self.events.after(0.0, then)
            else:
                self._waiting.append(then)

        return begin

    def give(self) -> None:
        """Free a place."""
        if self._waiting:
            self.events.after(0.0, self._waiting.popleft())
        else:
            self._free += 1


def spread(mean: float, deviation: float, normal: float) -> float:
    """A duration with this mean and relative deviation, log-normal. normal: a standard normal."""
    if deviation == 0:
        return mean
    variance = math.log1p(deviation**2)
    return mean * math.exp(normal * math.sqrt(variance) - variance / 2)
