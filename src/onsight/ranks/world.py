"""The processes that train together, as seen by one of them: its rank, and what ranks exchange."""

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
from onsight.ranks.meeting import JOIN_TIMEOUT, RankInfo, broadcast, interface_towards, meet
from onsight.ranks.signals import StopRequest
from onsight.ranks.watchdog import Watchdog
from onsight.text import joined

_COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # a last resort: the watchdog acts long before
_STORE_TIMEOUT = timedelta(days=7)  # decoding may take hours; the watchdog ends a lost job


Item = TypeVar("Item")


class Resettable(Protocol):
    """Something that holds resources until it is reset."""

    def reset(self) -> None:
        """Free the resources."""


class World:
    """A single process: collectives return its own values, and nothing waits.

    Attributes:
        rank: The number of this process, from 0.
        size: The number of processes.
        stop: Whether a signal has asked this process to stop.
        recordings: Recorded work of all ranks, reset before the process group is destroyed.
    """

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.stop = StopRequest()
        self.recordings: WeakSet[Resettable] = WeakSet()

    @property
    def stopping(self) -> bool:
        """Whether a signal has asked any rank to stop; true on all ranks after the same step."""
        return bool(self.stop)

    @property
    def is_main(self) -> bool:
        """Whether this is the first rank, which writes the files and reports."""
        return self.rank == 0

    def all_reduce_async(self, number: float) -> Callable[[], float]:
        """Start summing a number over all ranks; return a function that waits for the sum."""
        return lambda: number

    def poll_first_rank(self, answer: bool) -> bool:
        """Send the first rank's answer with the next `all_reduce_async`; return the last received.

        All ranks return the same.
        """
        return answer

    def reset_poll(self) -> None:
        """Forget the last answer; all pending sums must have been waited for."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks in place; it is on the CPU or on this rank's device."""
        return tensor

    def agree(self, value: float) -> float:
        """Return the first rank's value."""
        return value

    def count_sync(self) -> None:
        """Count a point at which all ranks wait for each other."""

    def report_activity(self, activity: str) -> None:
        """Tell the other ranks what this process is doing, and that it is making progress."""

    def report_each(self, batches: Iterable[Item], activity: str) -> Iterator[Item]:
        """Yield the batches, reporting the activity at each."""
        return iter(batches)

    def check_equal(self, name: str, value: str) -> None:
        """Raise DataError unless every rank has the same value."""

    def broadcast(self, name: str, make: Callable[[], str]) -> str:
        """Return what `make` returns on the first rank; the others wait for it."""
        return make()

    def wait_for_first_rank(self, name: str) -> None:
        """Wait until the first rank gets here too; it does not wait for the others."""
        self.broadcast(name, str)

    def gather(self, name: str, line: str) -> list[str]:
        """Return a line from every rank, in the order of the ranks."""
        return [line]

    @contextmanager
    def local_first(self, name: str) -> Iterator[None]:
        """Run the block on the first rank of each machine before the machine's other ranks."""
        yield

    @contextmanager
    def watchdog_paused(self) -> Iterator[None]:
        """Let the block take any time, even if other ranks wait for this one."""
        yield

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Take part in the job while the block runs."""
        yield


class Ranks(World):
    """One of several processes; most of its methods are described in `World`.

    Args:
        rank_info: Which of the processes this is.
        device: The device that it computes on.
        store: Where the ranks meet; by default a new connection is made.

    Raises:
        RankLost: If a rank does not join or is lost; also raised in `joined`.
        DeviceError: If two ranks have the same GPU.
    """

    def __init__(
        self, rank_info: RankInfo, device: torch.device, store: dist.Store | None = None
    ) -> None:
        super().__init__()
        self.any_stop = False
        # The answers of the first rank: the next to send, and the last received.
        self.answer_to_send = self.answer = False
        self.exchanges: Counter[str] = Counter()  # number of exchanges so far, by name
        self.rank_info, self.rank, self.size = rank_info, rank_info.rank, rank_info.size
        self.store = store or meet(rank_info)
        if self.size > rank_info.local_size:  # gloo must listen where the others can reach it
            interface = interface_towards(os.environ.get("MASTER_ADDR", ""))
            if interface:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        backend = "gloo"
        if device.type != "cpu":
            backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
            torch.accelerator.set_device_index(device)
        store = dist.PrefixStore("watchdog", self.store)
        self.watchdog = Watchdog(store, self.rank, self.size, rank_info.node)
        try:
            self.store.set(f"here/{self.rank}", "1")
            self._wait_for_all()
            self._refuse_shared_device(device)
            dist.init_process_group(
                backend,
                store=dist.PrefixStore("group", self.store),
                rank=self.rank,
                world_size=self.size,
                timeout=_COLLECTIVE_TIMEOUT,
            )
        except BaseException:
            self.watchdog.stop()  # without leaving in good order: the others find this rank lost
            raise

    @property
    def stopping(self) -> bool:
        """Whether a signal has asked any rank to stop, as of the last `all_reduce_async`."""
        return self.any_stop

    def all_reduce_async(self, number: float) -> Callable[[], float]:
        """Start summing a number over all ranks in float64; return a function that waits for it.

        Requests to stop and the first rank's answer travel along.
        """
        self.count_sync()
        sums = torch.tensor(
            [number, float(bool(self.stop)), float(self.answer_to_send)], dtype=torch.float64
        )
        pending = dist.all_reduce(sums, async_op=True)

        def wait() -> float:
            pending.wait()
            total, stops, answer = sums.tolist()
            self.any_stop, self.answer = stops > 0, answer > 0
            return float(total)

        return wait

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self.count_sync()
        dist.all_reduce(tensor)
        return tensor

    def poll_first_rank(self, answer: bool) -> bool:
        self.answer_to_send = answer and self.is_main
        return self.answer

    def reset_poll(self) -> None:
        self.answer_to_send = self.answer = False

    def agree(self, value: float) -> float:
        self.count_sync()
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, src=0)
        return float(shared)

    def count_sync(self) -> None:
        self.watchdog.syncs += 1

    def report_activity(self, activity: str) -> None:
        self.watchdog.activity = activity
        self.watchdog.reports += 1

    def report_each(self, batches: Iterable[Item], activity: str) -> Iterator[Item]:
        for number, batch in enumerate(batches, 1):
            self.report_activity(f"{activity}, batch {number}")
            yield batch

    def check_equal(self, name: str, value: str) -> None:
        values = self.gather(name, value)
        different = [rank for rank, other in enumerate(values) if other != values[0]]
        if different:
            raise DataError(
                f"{self.watchdog.describe(different[0])} does not see the same {name} as rank 0; "
                "all ranks must"
            )

    def _unique_key(self, name: str) -> str:
        """Return a key for one exchange: the store still holds the values of earlier ones."""
        self.exchanges[name] += 1
        return f"{name}/{self.exchanges[name]}"

    def broadcast(self, name: str, make: Callable[[], str]) -> str:
        key = f"first/{self._unique_key(name)}"
        with self.watchdog_paused():
            return broadcast(self.store, self.rank_info, key, make, _STORE_TIMEOUT)

    def gather(self, name: str, line: str) -> list[str]:
        key = self._unique_key(name)
        self.store.set(f"{key}/{self.rank}", line)
        keys = [f"{key}/{rank}" for rank in range(self.size)]
        with self.watchdog_paused():
            self.store.wait(keys, _STORE_TIMEOUT)
        return [self.store.get(key).decode() for key in keys]

    @contextmanager
    def local_first(self, name: str) -> Iterator[None]:
        key = f"{name}/machine-{self.rank_info.node}"
        with self.watchdog_paused():
            if self.rank_info.local_rank > 0:
                self.store.wait([key], _STORE_TIMEOUT)
            yield
        if self.rank_info.local_rank == 0:
            self.store.set(key, "done")

    @contextmanager
    def watchdog_paused(self) -> Iterator[None]:
        before = self.watchdog.paused
        self.watchdog.paused = True
        yield
        self.watchdog.paused = before

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Take part in the job while the block runs.

        Raises:
            RankLost: If a collective fails, naming the ranks that were lost.
        """
        try:
            yield
            self.gather("finished", "1")  # no rank leaves while another still writes or reads
        except RuntimeError as error:
            if not _is_broken_connection(error):
                raise
            names = [self.watchdog.describe(rank) for rank in self.watchdog.find_lost()]
            who = ", ".join(names) or "another rank"
            raise RankLost(f"{who} was lost; the job was ended") from error
        finally:
            for recording in self.recordings:  # NCCL cannot shut down while they exist
                recording.reset()
        self.watchdog.leave()
        dist.destroy_process_group()

    def _refuse_shared_device(self, device: torch.device) -> None:
        """Raise DeviceError if two ranks share a GPU, with which NCCL fails or hangs."""
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
            self.store.wait(list(keys.values()), JOIN_TIMEOUT)
        except RuntimeError as error:
            missing = [str(rank) for rank, key in keys.items() if not self.store.check([key])]
            raise RankLost(
                f"{len(missing)} of {self.size} ranks did not join within "
                f"{JOIN_TIMEOUT.total_seconds():.0f} s: rank {', '.join(missing)}"
            ) from error


def join(
    rank_info: RankInfo | None,
    device: torch.device,
    records: bool = False,
    store: dist.Store | None = None,
) -> World:
    """Return the world of this process; wait up to five minutes for the other ranks.

    Args:
        rank_info: Which of several processes this is; None if it runs alone.
        device: The device that it computes on.
        records: Whether steps may be recorded as a CUDA graph. torch then requires that NCCL's own
            error handling be off; the watchdog takes its place.
        store: Where the ranks have already met.
    """
    if records:
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    return World() if rank_info is None else Ranks(rank_info, device, store)


def _is_broken_connection(error: RuntimeError) -> bool:
    """Return whether a collective failed because of another process, by type or message."""
    words = ("gloo", "nccl")  # no everyday words: a user's network may raise RuntimeError too
    return isinstance(error, dist.DistError) or any(w in str(error).lower() for w in words)
