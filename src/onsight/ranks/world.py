"""The processes that train together, as seen by one of them; a world of one costs nothing."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, TypeVar
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from onsight.errors import DataError, DeviceError, RankLost
from onsight.hardware.devices import physical_device
from onsight.ranks.meeting import JOIN, RankInfo, interface_towards, meet
from onsight.ranks.signals import StopRequest
from onsight.ranks.watchdog import Watchdog
from onsight.text import joined

_COLLECTIVE = timedelta(minutes=30)  # a last resort: the watchdog acts long before
_LONG = timedelta(days=7)  # decoding may take hours; the watchdog ends a lost job


Item = TypeVar("Item")


class Resettable(Protocol):
    """Something that can be freed of what it has recorded."""

    def reset(self) -> None:
        """Free it."""


class World:
    """A single process: every sum is its own, and nobody waits."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.stop = StopRequest()
        self.recordings: WeakSet[Resettable] = WeakSet()  # of work that the ranks do together

    @property
    def stopping(self) -> bool:
        """Whether a signal has asked to stop; every rank learns of it after the same step."""
        return bool(self.stop)

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the files and reports."""
        return self.rank == 0

    def all_reduce_async(self, number: float) -> Callable[[], float]:
        """Start summing a number over all ranks; call the returned function to wait for the sum."""
        return lambda: number

    def agree_soon(self, asked: bool) -> bool:
        """Return the first rank's answer as of the last `all_reduce_async`, on every rank alike."""
        return asked

    def forget_answer(self) -> None:
        """Take the last answer as no, once every sum that was begun has been waited for."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place, of a tensor on the CPU or on this rank's device."""
        return tensor

    def agree(self, value: float) -> float:
        """The first rank's value, on every rank."""
        return value

    def count_sync(self) -> None:
        """Count a point where all ranks wait for each other."""

    def does(self, what: str) -> None:
        """Note what this process does now; each call shows that it moves, if slowly."""

    def follow(self, batches: Iterable[Item], what: str) -> Iterator[Item]:
        """The same batches; each shows that this process moves."""
        return iter(batches)

    def check_equal(self, what: str, value: str) -> None:
        """Raise DataError unless every rank has the same value."""

    def broadcast(self, what: str, make: Callable[[], str]) -> str:
        """The value that the first rank makes; the others wait for it."""
        return make()

    def gather(self, what: str, line: str) -> list[str]:
        """One line from every rank, in the order of the ranks."""
        return [line]

    @contextmanager
    def local_first(self, what: str) -> Iterator[None]:
        """Let the first rank of each machine run the block before the others there do."""
        yield

    @contextmanager
    def watchdog_paused(self) -> Iterator[None]:
        """Do work that the others may have to wait for, without being taken for stuck."""
        yield

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Take part while the block runs."""
        yield


class Ranks(World):
    """Several processes. Raises RankLost when another one is gone."""

    def __init__(
        self, rank_info: RankInfo, device: torch.device, store: dist.Store | None = None
    ) -> None:
        super().__init__()
        self.any_stop = False
        self.asked = self.answer = False  # what the first rank asks, and what all have heard
        self.exchanges: Counter[str] = Counter()  # so far, by what is exchanged
        self.rank, self.size = rank_info.rank, rank_info.size
        self.local_rank, self.node = rank_info.local_rank, rank_info.node
        self.store = store or meet(rank_info)
        if self.size > rank_info.local_size:
            _reach_other_machines()
        backend = "gloo"
        if device.type != "cpu":
            backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
            torch.accelerator.set_device_index(device)
        watched = dist.PrefixStore("watchdog", self.store)
        self.watchdog = Watchdog(watched, self.rank, self.size, self.node)
        try:
            self._begin(device, backend)
        except BaseException:
            self.watchdog.stop()  # without notice of leaving: the others find this rank gone
            raise

    def _begin(self, device: torch.device, backend: str) -> None:
        """Wait for all ranks and form their process group. Raises DeviceError."""
        self.store.set(f"here/{self.rank}", "1")
        self._wait_for_all()
        self._refuse_shared_device(device)
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
        """Start summing a number over all ranks in float64.

        A request to stop travels with it, and what the first rank asks. The sum is under way while
        the caller does other work before waiting for it.
        """
        self.count_sync()
        mine = torch.tensor(
            [number, float(bool(self.stop)), float(self.asked)], dtype=torch.float64
        )
        under_way = dist.all_reduce(mine, async_op=True)

        def wait() -> float:
            under_way.wait()
            value, stops, answer = mine.tolist()
            self.any_stop, self.answer = stops > 0, answer > 0
            return float(value)

        return wait

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place, of a tensor on the CPU or on this rank's device."""
        self.count_sync()
        dist.all_reduce(tensor)
        return tensor

    def agree_soon(self, asked: bool) -> bool:
        """Return the first rank's answer as of the last `all_reduce_async`, on every rank alike."""
        self.asked = asked and self.is_main
        return self.answer

    def forget_answer(self) -> None:
        """Take the last answer as no, once every sum that was begun has been waited for."""
        self.asked = self.answer = False

    def agree(self, value: float) -> float:
        """The first rank's value, on every rank."""
        self.count_sync()
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, src=0)
        return float(shared)

    def count_sync(self) -> None:
        """Count a point where all ranks wait for each other."""
        self.watchdog.syncs += 1

    def does(self, what: str) -> None:
        """Note what this process does now; each call shows that it moves, if slowly."""
        self.watchdog.doing = what
        self.watchdog.moves += 1

    def follow(self, batches: Iterable[Item], what: str) -> Iterator[Item]:
        """The same batches; each shows that this process moves."""
        for number, batch in enumerate(batches, 1):
            self.does(f"{what}, batch {number}")
            yield batch

    def check_equal(self, what: str, value: str) -> None:
        """Raise DataError unless every rank has the same value."""
        values = self.gather(what, value)
        odd = [rank for rank, other in enumerate(values) if other != values[0]]
        if odd:
            raise DataError(
                f"{self.watchdog.describe(odd[0])} does not see the same {what} as rank 0; "
                "all ranks must"
            )

    def _numbered(self, what: str) -> str:
        """A key of its own for each exchange: the store keeps what earlier ones left there."""
        self.exchanges[what] += 1
        return f"{what}/{self.exchanges[what]}"

    def broadcast(self, what: str, make: Callable[[], str]) -> str:
        """The value that the first rank makes; the others wait for it."""
        key = f"first/{self._numbered(what)}"
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
        """One line from every rank, in the order of the ranks."""
        what = self._numbered(what)
        self.store.set(f"{what}/{self.rank}", line)
        keys = [f"{what}/{rank}" for rank in range(self.size)]
        with self.watchdog_paused():
            self.store.wait(keys, _LONG)
        return [self.store.get(key).decode() for key in keys]

    @contextmanager
    def local_first(self, what: str) -> Iterator[None]:
        """Let the first rank of each machine run the block before the others there do."""
        key = f"{what}/machine-{self.node}"
        with self.watchdog_paused():
            if self.local_rank > 0:
                self.store.wait([key], _LONG)
            yield
        if self.local_rank == 0:
            self.store.set(key, "done")

    @contextmanager
    def watchdog_paused(self) -> Iterator[None]:
        """Do work that the others may have to wait for, without being taken for stuck."""
        before = self.watchdog.paused
        self.watchdog.paused = True
        yield
        self.watchdog.paused = before

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Take part while the block runs; name the lost ranks if a collective fails."""
        try:
            yield
            self.gather("finished", "1")  # nobody leaves while another still writes or reads
        except RuntimeError as error:
            if not _is_broken_connection(error):
                raise
            names = [self.watchdog.describe(rank) for rank in self.watchdog.find_lost()]
            who = ", ".join(names) or "another rank"
            raise RankLost(f"{who} was lost; the job was ended") from error
        finally:
            for recording in self.recordings:  # NCCL waits for them before it ends
                recording.reset()
        self.watchdog.leave()
        dist.destroy_process_group()

    def _refuse_shared_device(self, device: torch.device) -> None:
        """Raise DeviceError if two ranks compute on one GPU, where NCCL would fail or hang."""
        ranks: dict[str, list[str]] = {}
        for rank, name in enumerate(self.gather("device", physical_device(device))):
            ranks.setdefault(name, []).append(str(rank))
        for name, sharing in ranks.items():
            if name and len(sharing) > 1:
                raise DeviceError(
                    f"ranks {joined(sharing)} have the same GPU ({name}), but each needs its own: "
                    "start as many ranks as there are GPUs, or show each rank one of its own "
                    "(with srun: --gpus-per-task 1)"
                )

    def _wait_for_all(self) -> None:
        keys = {rank: f"here/{rank}" for rank in range(self.size)}
        try:
            self.store.wait(list(keys.values()), JOIN)
        except RuntimeError as error:
            missing = [str(rank) for rank, key in keys.items() if not self.store.check([key])]
            raise RankLost(
                f"{len(missing)} of {self.size} ranks did not join within "
                f"{JOIN.total_seconds():.0f} s: rank {', '.join(missing)}"
            ) from error


def join(
    rank_info: RankInfo | None,
    device: torch.device,
    records: bool = False,
    store: dist.Store | None = None,
) -> World:
    """The world of this process; waits up to five minutes for the other ranks.

    store: where they meet, if they have met; records: whether steps are to be recorded as a CUDA
    graph; torch then asks that NCCL's errors be left to others, which here is the watchdog.
    """
    if records:
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    return World() if rank_info is None else Ranks(rank_info, device, store)


def _reach_other_machines() -> None:
    """Let gloo listen where the other machines can reach it."""
    towards = interface_towards(os.environ.get("MASTER_ADDR", ""))
    if towards:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", towards)


def _is_broken_connection(error: RuntimeError) -> bool:
    """Whether a collective failed because of another process, by torch's types and words."""
    words = ("gloo", "nccl")  # no everyday words: a user's network may raise RuntimeError too
    return isinstance(error, dist.DistError) or any(w in str(error).lower() for w in words)
