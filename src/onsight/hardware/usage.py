"""What this process has used so far: time since it started, and peak memory."""

import os
import sys
import time
from pathlib import Path

import torch

from onsight import accelerator

_IMPORTED = time.monotonic()


def seconds_since_start() -> float:
    """Seconds since the process started, or since this module was imported if that is unknown."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError, IndexError, ValueError):
        return time.monotonic() - _IMPORTED


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
    if accelerator.has_streams(device):
        accelerator.module_of(device).reset_peak_memory_stats(device)


def peak_device_memory_bytes(device: torch.device) -> int:
    """The peak memory that torch allocated on an accelerator, in bytes; 0 on the CPU."""
    if accelerator.has_streams(device):
        return int(accelerator.module_of(device).max_memory_allocated(device))
    return 0
