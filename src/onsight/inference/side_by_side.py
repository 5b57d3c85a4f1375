"""Parts of a batch computed side by side on a CPU, each by a thread with its share of the cores.

Networks of many small operations leave cores idle at each of them, where threads wait for each
other. B images, C channels, H height, W width.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

_MOST = 4  # Python starts the operations of all parts in turn

T = TypeVar("T")


class SideBySide:
    """Threads that share torch's compute threads of the one that makes them.

    size: of a part; is_even: whether smaller batches are divided as well.
    """

    is_even = False

    def __init__(self, size: int) -> None:
        self.size = size
        threads = torch.get_num_threads()
        self.count = min(_MOST, threads)
        self._pool = ThreadPoolExecutor(self.count, "compute") if self.count > 1 else None
        if self._pool:
            started = Barrier(self.count)
            ready = [
                self._pool.submit(_share, threads // self.count, started) for _ in range(self.count)
            ]
            for one in ready:
                one.result()
            torch.set_num_threads(threads)  # what the others have set counts for new threads

    def map(self, function: Callable[[Tensor], T], images: Tensor) -> list[T]:
        """What a function gives for each part of images (B, H, W, C), in order."""
        size = min(self.size, -(-len(images) // self.count)) if self.is_even else self.size
        parts = images.split(size)
        if not self._pool or len(parts) == 1:
            return [function(images)]
        return list(self._pool.map(function, parts))


def _share(threads: int, started: Barrier) -> None:
    torch.get_num_threads()  # at a thread's first question torch gives it the common number
    torch.set_num_threads(threads)
    started.wait()  # so that each thread is one of its own
