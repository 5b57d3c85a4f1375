"""The peak memory of this process."""

import sys

import torch

from onsight_explain.devices import has_streams, module_of


def peak_memory_bytes() -> int:
    """The peak memory of the process, in bytes; 0 if unknown."""
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forget_peak_device_memory(device: torch.device) -> None:
    """Begin anew with the peak memory of an accelerator."""
    if has_streams(device):
        module_of(device).reset_peak_memory_stats(device)


def peak_device_memory_bytes(device: torch.device) -> int:
    """The peak memory that torch allocated on an accelerator, in bytes; 0 on the CPU."""
    if has_streams(device):
        return int(module_of(device).max_memory_allocated(device))
    return 0
