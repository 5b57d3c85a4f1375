"""The processes that train together, seen from one of them: all measure before any of them ends."""

from functools import cached_property
from pathlib import Path

import torch.distributed as dist


def path_of(out: Path, rank: int) -> Path:
    """Where a rank writes what rank 0 writes to `out`."""
    return out.with_name(f"{out.stem}-{rank}{out.suffix}") if rank else out


class Peers:
    """The ranks of a run; they tell each other by files beside `out`, where rank 0 reports.

    A rank that ended as soon as it had measured would take the others' training with it.
    """

    def __init__(self, out: Path) -> None:
        self.out = out

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

    def have_measured(self) -> bool:
        """Whether every rank has, as this one."""
        if self.world == 1:
            return True
        self._mark(self.rank).touch()
        return all(self._mark(rank).exists() for rank in range(self.world))

    def have_reported(self) -> bool:
        """Whether every other rank has."""
        return all(path_of(self.out, rank).exists() for rank in range(1, self.world))

    def _mark(self, rank: int) -> Path:
        return self.out.with_name(f"measured-{rank}")


def _is_joined() -> bool:
    return dist.is_available() and dist.is_initialized()
