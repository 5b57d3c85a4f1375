"""Simulated steps of a training run: input, computing, waiting for the slowest rank, all-reduce.

Each rank has a process that fetches and decodes batches ahead, and another that computes its share
of each step and then waits for the other ranks. The ranks of a machine share its cores, its link
and, if it has any, its GPUs.
"""

import math
import random
from dataclasses import dataclass
from itertools import pairwise

from scaling_events import Barrier, Events, Process, Semaphore, Shared, spread

WARM_UP_STEPS = 10


@dataclass(frozen=True)
class Machine:
    """What the ranks of a machine share.

    crowded: the speed of a core when all are busy, relative to its speed alone; overfull: a further
    factor when there are more threads than cores; link_bytes: bytes per second from the storage of
    the shards; gpus: 0 if the network runs on the cores.
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

    compute_seconds: on one core, or on a GPU; deviation: relative, of a rank's step;
    decode_seconds and image_bytes: per image, 0 if images are in memory; decode_threads: per rank;
    ahead: batches that are prefetched; waits: additional points in a step where ranks wait for each
    other, such as batch norm; slow_share: the share of ranks that are slower, by slow_by.
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
    """Communication: seconds of the gradient all-reduce that nothing hides, and of each wait."""

    seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class Speed:
    """Images per second over all ranks, and the seconds of each step."""

    images_per_second: float
    step_seconds: list[float]


def ring_seconds(
    size: int, nbytes: float, bytes_per_second: float, latency: float, hops: int
) -> float:
    """The time of a ring all-reduce of nbytes over size members: transfer plus latencies."""
    if size == 1:
        return 0.0
    return 2 * (size - 1) / size * nbytes / bytes_per_second + hops * latency


def unhidden(seconds: float, hidden_seconds: float, buckets: int) -> float:
    """The part of an all-reduce that the backward pass does not hide.

    Buckets are sent during the backward pass, but the last one only after it has ended.
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

    def _start_machine(self, slowness: list[float], is_recorded: bool) -> None:
        machine, events = self.machine, self.events
        cores = Shared(events, machine.cores, machine.crowded, machine.overfull)
        device = Shared(events, machine.gpus) if machine.gpus else cores
        link = Shared(events, 1)
        for number, slower in enumerate(slowness):
            free: Semaphore | None = None
            ready = Semaphore(events, 0)
            if self.work.decode_seconds or self.work.image_bytes:
                free = Semaphore(events, self.work.ahead)
                fetched = Semaphore(events, 0)
                events.start(self._fetch(link, free, fetched))
                events.start(self._decode(cores, fetched, ready))
            is_first = is_recorded and number == 0
            events.start(self._train(device, slower, free, ready, is_first))

    def _fetch(self, link: Shared, free: Semaphore, fetched: Semaphore) -> Process:
        nbytes = self.work.images * self.work.image_bytes
        for _ in range(self.steps):
            yield free.acquire()
            yield link.use(nbytes / self.machine.link_bytes)
            fetched.release()

    def _decode(self, cores: Shared, fetched: Semaphore, ready: Semaphore) -> Process:
        seconds = self.work.images * self.work.decode_seconds
        for _ in range(self.steps):
            yield fetched.acquire()
            yield cores.use(seconds, self.work.decode_threads)
            ready.release()

    def _train(
        self,
        device: Shared,
        slower: float,
        free: Semaphore | None,
        ready: Semaphore,
        is_recorded: bool,
    ) -> Process:
        work = self.work
        for _ in range(self.steps):
            if free:
                yield ready.acquire()
                free.release()
            drawn = self.drawn.gauss(0, 1)
            seconds = slower * spread(work.compute_seconds, work.deviation, drawn)
            for _ in range(work.waits):
                yield device.use(seconds / (work.waits + 1))
                yield self.barrier.arrive(self.exchange.wait_seconds)
            yield device.use(seconds / (work.waits + 1))
            yield self.barrier.arrive(self.exchange.seconds)
            if is_recorded:
                self.ends.append(self.events.now)


def simulate(
    machine: Machine, work: Work, exchange: Exchange, ranks: int, steps: int = 200, seed: int = 0
) -> Speed:
    """The speed of a number of ranks over a number of steps, after a warm-up."""
    run = _Run(machine, work, exchange, ranks, steps + WARM_UP_STEPS, seed)
    run.events.run()
    ends = run.ends[WARM_UP_STEPS - 1 :]
    rate = work.images * ranks * (len(ends) - 1) / (ends[-1] - ends[0])
    return Speed(rate, [end - begin for begin, end in pairwise(ends)])
