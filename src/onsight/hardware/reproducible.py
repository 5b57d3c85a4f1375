"""Torch settings under which equal inputs give bit-identical results, or speed counts more."""

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch

_SETTINGS: Any = torch.utils.deterministic  # a module whose attributes are settings
_NONDETERMINISTIC = r"(\S+) does not have a deterministic implementation"


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set torch's number of threads within a block."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


@contextmanager
def reproducible(threads: int) -> Iterator[None]:
    """Set the number of threads and use deterministic kernels within a block."""
    with torch_threads(threads), deterministic():
        torch.use_deterministic_algorithms(True, warn_only=True)  # read by torch.compile too
        yield


@contextmanager
def autotuned(threads: int) -> Iterator[None]:
    """Set the number of threads, and let cuDNN time its kernels and use the fastest."""
    previous = torch.backends.cudnn.benchmark
    with torch_threads(threads):
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = previous


KERNELS = {"repeatable": reproducible, "fastest": autotuned}


@contextmanager
def deterministic() -> Iterator[None]:
    """Use deterministic kernels within a block; of several threads, the last to leave restores."""
    _kernels.enter()
    try:
        yield
    finally:
        _kernels.leave()


@contextmanager
def reporting_nondeterministic(report: Callable[[str], None]) -> Iterator[list[str]]:
    """Report once each operation in a block that has no deterministic kernel; yield their names.

    Torch has none for some operations on GPUs; its warnings about them are not shown.
    """
    names: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_once(message: Warning | str, *place: Any, **named: Any) -> None:
            match = re.match(_NONDETERMINISTIC, str(message))
            if not match:
                show(message, *place, **named)
            elif match[1] not in names:
                names.append(match[1])
                report(f"{match[1]} has no deterministic kernel here: bits may differ next time")

        warnings.filterwarnings("default", _NONDETERMINISTIC)
        warnings.showwarning = show_once
        yield names


class _Kernels:
    """Torch's choice of kernels, which all threads share."""

    def __init__(self) -> None:
        self.lock, self.inside = Lock(), 0
        self.previous: tuple[int, bool, bool] = (0, False, False)

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside > 1:
                return
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
            mode, fill = torch.get_deterministic_debug_mode(), _SETTINGS.fill_uninitialized_memory
            self.previous = mode, fill, torch.backends.cudnn.benchmark
            torch.set_deterministic_debug_mode("warn")
            _SETTINGS.fill_uninitialized_memory = False  # costs time, and nothing here needs it
            torch.backends.cudnn.benchmark = False

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside:
                return
            mode, fill, torch.backends.cudnn.benchmark = self.previous
            torch.set_deterministic_debug_mode(mode)
            _SETTINGS.fill_uninitialized_memory = fill


_kernels = _Kernels()
