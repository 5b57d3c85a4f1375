"""Two ranks of one process, each in a thread."""

from threading import Barrier
from typing import ClassVar

import torch

from onsight.ranks.world import World


class RankInThread(World):
    """One of two ranks that meet at a barrier instead of in a process group."""

    size = 2
    barrier = Barrier(2)
    contributions: ClassVar[dict] = {}

    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def all_reduce(self, tensor):
        self.contributions[self.rank] = tensor.clone()
        self.barrier.wait()
        total = self.contributions[0] + self.contributions[1]
        self.barrier.wait()
        return total

    def agree(self, value):
        return self.all_reduce(torch.tensor(value if self.is_main else 0.0).double()).item()
