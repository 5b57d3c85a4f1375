"""The processes that train together, as one of them sees the others; a world of one is free."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from onsight.errors import DataError, OnsightError, RankLost
from onsight.training.ranks.rank_info import RankInfo, slurm_address
from onsight.training.ranks.signals import StopRequest
from onsight.training.ranks.watchdog import Watchdog

STORE = "ONSIGHT_STORE"  # host:port of the store that Onsight's own launcher keeps

_JOIN = timedelta(minutes=5)  # machines of a cluster do not start at once
_COLLECTIVE = timedelta(
    minutes=30
)  # of a process that hangs in evaluation; else the watchdog ends it
_LONG = timedelta(days=7)  # decoding may take hours; the watchdog ends a lost job


class World:
    """A process alone: every sum is its own, nobody waits."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.stop = StopRequest()

    @property
    def stopping(self) -> bool:
        """Whether a signal has asked to stop; every rank sees it after the same step."""
        return bool(self.stop)

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the files and reports."""
        return self.rank == 0

    def all_reduce_async(self, number: float) -> Callable[[], float]:
        """Begin to sum each rank's number; call what comes back to wait for the sum."""
        return lambda: number

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of each rank's tensor, on the CPU."""
        return tensor

    def count_sync(self) -> None:
        """Count a place in a step where all ranks wait for each other."""

    def check_equal(self, what: str, value: str) -> None:
        """Raise DataError unless every rank has the same value."""

    def broadcast(self, what: str, make: Callable[[], str]) -> str:
        """What the first rank makes; the others wait for it."""
        return make()

    def gather(self, what: str, line: str) -> list[str]:
        """A line of every rank, in order, for the first to tell."""
        return [line]

    @contextmanager
    def local_first(self, what: str) -> Iterator[None]:
        """Let the first rank of a machine do its block before the others do theirs."""
        yield

    @contextmanager
    def watchdog_paused(self) -> Iterator[None]:
        """Do what the others may have to wait for, without being taken for stuck."""
        yield

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Be part of it for a while."""
        yield


class Ranks(World):
    """Several processes. Raises RankLost when another one is gone."""

    def __init__(self, rank_info: RankInfo, device: torch.device) -> None:
        super().__init__()
        self.any_stop = False
        self.rank, self.size = rank_info.rank, rank_info.size
        self.local_rank, self.node = rank_info.local_rank, rank_info.node
        self.store = _meet(rank_info)
        backend = "gloo"
        if device.type != "cpu":
            backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
            torch.accelerator.set_device_index(device)
        self.watchdog = Watchdog(dist.PrefixStore("watchdog", self.store), self.rank, self.size)
        self.store.set(f"here/{self.rank}", "1")
        self._wait_for_all()
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", self.store),
            rank=self.rank,
            world_size=self.size,
            timeout=_COLLECTIVE,
        )

    @property
    def stopping(self) -> bool:
        """Whether a signal has asked any rank to stop, as of the last all_reduce_async."""
        return self.any_stop

    def all_reduce_async(self, number: float) -> Callable[[], float]:
        """Begin to sum each rank's number in float64; a wish to stop travels with it.

        The sum is on its way during what is done before it is waited for.
        """
        self.count_sync()
        mine = torch.tensor([number, float(bool(self.stop))], dtype=torch.float64)
        under_way = dist.all_reduce(mine, async_op=True)

        def wait() -> float:
            under_way.wait()
            value, stops = mine.tolist()
            self.any_stop = stops > 0
            return float(value)

        return wait

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of each rank's tensor, on the CPU."""
        dist.all_reduce(tensor)
        return tensor

    def count_sync(self) -> None:
        """Count a place in a step where all ranks wait for each other."""
        self.watchdog.syncs += 1

    def check_equal(self, what: str, value: str) -> None:
        """Raise DataError unless every rank has the same value."""
        values = self.gather(what, value)
        odd = [rank for rank, other in enumerate(values) if other != values[0]]
        if odd:
            raise DataError(
                f"{self.watchdog.describe(odd[0])} has other {what} than rank 0; "
                "all ranks must see the same"
            )

    def broadcast(self, what: str, make: Callable[[], str]) -> str:
        """What the first rank makes; the others wait for it."""
        key = f"first/{what}"
        if self.is_main:
            with self.watchdog_paused():
                value = make()
            self.store.set(key, value)
            return value
        with self.watchdog_paused():
            self.store.wait([key], _LONG)
        value = self.store.get(key).decode()
        return str(value)

    def gather(self, what: str, line: str) -> list[str]:
        """A line of every rank, in order, for the first to tell."""
        self.store.set(f"{what}/{self.rank}", line)
        keys = [f"{what}/{rank}" for rank in range(self.size)]
        with self.watchdog_paused():
            self.store.wait(keys, _LONG)
        return [self.store.get(key).decode() for key in keys]

    @contextmanager
    def local_first(self, what: str) -> Iterator[None]:
        """Let the first rank of a machine do its block before the others do theirs."""
        key = f"{what}/machine-{self.node}"
        with self.watchdog_paused():
            if self.local_rank > 0:
                self.store.wait([key], _LONG)
            yield
        if self.local_rank == 0:
            self.store.set(key, "done")

    @contextmanager
    def watchdog_paused(self) -> Iterator[None]:
        """Do what the others may have to wait for, without being taken for stuck."""
        self.watchdog.paused = True
        yield
        self.watchdog.paused = False

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Be part of it for a while; name the lost when a collective breaks."""
        try:
            yield
            self.gather("finished", "1")  # nobody leaves while another still writes or reads
        except RuntimeError as error:
            if not _is_broken_connection(error):
                raise
            names = [self.watchdog.describe(rank) for rank in self.watchdog.find_lost()]
            who = ", ".join(names) or "another rank"
            raise RankLost(f"{who} was lost; the job was ended") from error
        self.watchdog.leave()
        dist.destroy_process_group()

    def _wait_for_all(self) -> None:
        keys = {rank: f"here/{rank}" for rank in range(self.size)}
        try:
            self.store.wait(list(keys.values()), _JOIN)
        except RuntimeError as error:
            missing = [str(rank) for rank, key in keys.items() if not self.store.check([key])]
            raise RankLost(
                f"{len(missing)} of {self.size} ranks did not come within "
                f"{_JOIN.total_seconds():.0f} s: rank {', '.join(missing)}"
            ) from error


def join(rank_info: RankInfo | None, device: torch.device) -> World:
    """The world of this process: meets the other ranks, waiting up to five minutes for them."""
    return World() if rank_info is None else Ranks(rank_info, device)


def _meet(rank_info: RankInfo) -> dist.Store:
    """The store of a launcher: Onsight's, torchrun's, or one that the first rank keeps."""
    if STORE in os.environ:
        host, _, port = os.environ[STORE].rpartition(":")
        return dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    if rank_info.launcher == "Slurm":
        host, number = slurm_address(os.environ)
        os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(number)}
    try:
        store, _, _ = next(dist.rendezvous("env://", rank_info.rank, rank_info.size, timeout=_JOIN))
    except (RuntimeError, ValueError) as error:
        raise OnsightError(f"the ranks cannot meet: {error}") from error
    met: dist.Store = store
    return met


def _is_broken_connection(error: RuntimeError) -> bool:
    """Whether a collective failed because of another process, by torch's types and words."""
    words = ("gloo", "nccl")  # and no everyday word: a user's network raises RuntimeError too
    return isinstance(error, dist.DistError) or any(w in str(error).lower() for w in words)
