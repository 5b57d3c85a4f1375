"""Times work, waiting for its device before and after."""

import time
from collections.abc import Callable

import torch


def measure_seconds(work: Callable[[], object], threads: int, device: torch.device) -> float:
    """Seconds of work in the given number of threads, waiting for its device at both ends."""
    former = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        _synchronize(device)
        begun = time.perf_counter()
        work()
        _synchronize(device)
        return time.perf_counter() - begun
    finally:
        torch.set_num_threads(former)


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
