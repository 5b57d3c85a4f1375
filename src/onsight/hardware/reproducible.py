"""Torch settings under which equal inputs give bit-identical results."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_SETTINGS: Any = torch.utils.deterministic  # a module whose attributes are settings


@contextmanager
def reproducible(threads: int) -> Iterator[None]:
    """Set the number of threads and deterministic kernels within a block."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    former_threads = torch.get_num_threads()
    former_mode = torch.get_deterministic_debug_mode()
    former_fill = _SETTINGS.fill_uninitialized_memory
    former_benchmark = torch.backends.cudnn.benchmark
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    _SETTINGS.fill_uninitialized_memory = False  # costs time, and nothing here needs it
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.set_num_threads(former_threads)
        torch.set_deterministic_debug_mode(former_mode)
        _SETTINGS.fill_uninitialized_memory = former_fill
        torch.backends.cudnn.benchmark = former_benchmark
