"""Simulated steps of a training run: input, computing, waiting for the slowest rank, all-reduce.

Each rank has a process that fetches and decodes batches ahead, and another that computes its share
of each step and then waits for the other ranks. The ranks of a machine share its cores, its link
and, if it has any, its GPUs.
"""

import math
import random
from dataclasses import dataclass
from itertools import pairwise

from scaling_events import Barrier, Events, Places, Process, Shared, spread

WARM_UP = 10  # steps that are not counted


@dataclass(frozen=True)
class Machine:
    """What the ranks of a machine share.

    crowded: the speed of a core if all are busy, as a share of its speed alone; overfull: what is
    left of that if more threads want one; link_bytes: bytes a second from where the shards are;
    gpus: 0 if the cores compute.
    """

    cores: float
    ranks: int
    crowded: float = 1.0
    overfull: float = 1.0
    link_bytes: float = math.inf
    gpus: int = 0


@dataclass(frozen=True)
class Work:
    """A rank's share of a step.

    compute_seconds: on one core, or on a GPU; deviation: of a rank's step, relative; decode_seconds
    and image_bytes: of an image, 0 if it waits in memory; decode_threads: of a rank; ahead:
    batches that are decoded beside the step; waits: places in a step where ranks wait for each
    other besides the last, as for batch norm; slow_share: of ranks that are slower by slow_by.
    """

    images: int
    compute_seconds: float
    deviation: float = 0.0
    decode_seconds: float = 0.0
    decode_threads: int = 1
    image_bytes: float = 0.0
    ahead: int = 2
    waits: int = 0
    slow_share: float = 0.0
    slow_by: float = 0.0


@dataclass(frozen=True)
class Exchange:
    """Sending gradients: seconds of a step's all-reduce that nothing hides, and of each wait."""

    seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class Speed:
    """Images a second over all ranks, and the seconds of each step."""

    images_per_second: float
    step_seconds: list[float]


def ring_seconds(
    size: int, nbytes: float, bytes_per_second: float, latency: float, hops: int
) -> float:
    """An all-reduce of so many bytes among so many members: what each sends, and the latencies."""
    if size == 1:
        return 0.0
    return 2 * (size - 1) / size * nbytes / bytes_per_second + hops * latency


def unhidden(seconds: float, hidden_seconds: float, buckets: int) -> float:
    """What is left of an all-reduce that goes on beside the backward pass, bucket by bucket.

    The last bucket can only be sent when the backward pass has ended.
    """
    return max(seconds / buckets, seconds - hidden_seconds)


class _Run:
    def __init__(
        self, machine: Machine, work: Work, exchange: Exchange, ranks: int, steps: int, seed: int
    ) -> None:
        self.machine, self.work, self.exchange = machine, work, exchange
        self.steps = steps
        self.drawn = random.Random(seed)
        self.events = Events()
        self.barrier = Barrier(self.events, ranks)
        self.ends: list[float] = []
        slow = round(work.slow_share * ranks)
        for first in range(0, ranks, machine.ranks):
            here = range(first, min(ranks, first + machine.ranks))
            self._start_machine([1 + work.slow_by * (rank < slow) for rank in here], first == 0)

    def _start_machine(self, slowness: list[float], notes: bool) -> None:
        machine, events = self.machine, self.events
        cores = Shared(events, machine.cores, machine.crowded, machine.overfull)
        device = Shared(events, machine.gpus) if machine.gpus else cores
        link = Shared(events, 1)
        for number, slower in enumerate(slowness):
            free: Places | None = Places(events, self.work.ahead)
            ready = Places(events, 0)
            if free and (self.work.decode_seconds or self.work.image_bytes):
                fetched = Places(events, 0)
                events.start(self._fetch(link, free, fetched))
                events.start(self._decode(cores, fetched, ready))
            else:
                free = None
            events.start(self._train(device, slower, free, ready, notes and number == 0))

    def _fetch(self, link: Shared, free: Places, fetched: Places) -> Process:
        nbytes = self.work.images * self.work.image_bytes
        for _ in range(self.steps):
            yield free.take()
            yield link.use(nbytes / self.machine.link_bytes)
            fetched.give()

    def _decode(self, cores: Shared, fetched: Places, ready: Places) -> Process:
        seconds = self.work.images * self.work.decode_seconds
        for _ in range(self.steps):
            yield fetched.take()
            yield cores.use(seconds, self.work.decode_threads)
            ready.give()

    def _train(
        self, device: Shared, slower: float, free: Places | None, ready: Places, notes: bool
    ) -> Process:
        work = self.work
        for _ in range(self.steps):
            if free:
                yield ready.take()
                free.give()
            drawn = self.drawn.gauss(0, 1)
            seconds = slower * spread(work.compute_seconds, work.deviation, drawn)
            for _ in range(work.waits):
                yield device.use(seconds / (work.waits + 1))
                yield self.barrier.arrive(self.exchange.wait_seconds)
            yield device.use(seconds / (work.waits + 1))
            yield self.barrier.arrive(self.exchange.seconds)
            if notes:
                self.ends.append(self.events.now)


def simulate(
    machine: Machine, work: Work, exchange: Exchange, ranks: int, steps: int = 200, seed: int = 0
) -> Speed:
    """The speed of so many ranks over so many steps, after some that are not counted."""
    run = _Run(machine, work, exchange, ranks, steps + WARM_UP, seed)
    run.events.run()
    ends = run.ends[WARM_UP - 1 :]
    rate = work.images * ranks * (len(ends) - 1) / (ends[-1] - ends[0])
    return Speed(rate, [end - begin for begin, end in pairwise(ends)])
