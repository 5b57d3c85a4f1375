"""The processes that train together, seen from one of them: all measure before any of them ends."""

from functools import cached_property
from pathlib import Path

import torch.distributed as dist

from onsight.files import write_atomically


def path_of(out: Path, rank: int) -> Path:
    """Where a rank writes what rank 0 writes to `out`."""
    return out.with_name(f"{out.stem}-{rank}{out.suffix}") if rank else out


class Peers:
    """The ranks of a run; they tell each other by files beside `out`, where rank 0 reports.

    A rank that ended as soon as it had measured would take the others' training with it.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self._window = 0

    @cached_property
    def rank(self) -> int:
        """Of this process; to be asked when it trains, because it joins the others late."""
        return dist.get_rank() if _is_joined() else 0

    @cached_property
    def world(self) -> int:
        """How many processes train together."""
        return dist.get_world_size() if _is_joined() else 1

    @property
    def path(self) -> Path:
        """Where this rank reports."""
        return path_of(self.out, self.rank)

    def have_measured(self, step: int) -> bool:
        """Whether every rank has, as this one, and this is the step after which all of them stop.

        It is the first one after the last rank has measured: then all know of each other, and
        none waits in a collective for one that has stopped.
        """
        if self.world == 1:
            return True
        if not self._mark(self.rank).exists():
            write_atomically(self._mark(self.rank), str(step).encode())
        marks = [self._mark(rank) for rank in range(self.world)]
        return all(mark.exists() for mark in marks) and step > max(map(_step_of, marks))

    def begin_again(self) -> None:
        """Measure another window."""
        self._window += 1

    def _mark(self, rank: int) -> Path:
        return self.out.with_name(f"{self.out.stem}-measured-{self._window}-{rank}")


def _step_of(mark: Path) -> int:
    return int(mark.read_text(encoding="utf-8"))


def _is_joined() -> bool:
    return dist.is_available() and dist.is_initialized()
