"""What this process has taken so far: time since it started, memory at its peak."""

import os
import sys
import time
from pathlib import Path

import torch

_IMPORTED = time.monotonic()


def seconds_since_start() -> float:
    """Seconds since the process started; since this module was imported where unknown."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError, IndexError, ValueError):
        return time.monotonic() - _IMPORTED


def peak_memory_bytes() -> int:
    """The most memory the process ever held, in bytes; 0 when it cannot be told."""
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_device_memory_bytes(device: torch.device) -> int:
    """The most memory torch ever held on an accelerator, in bytes; 0 on the CPU."""
    if device.type in ("cuda", "xpu"):
        return int(getattr(torch, device.type).max_memory_allocated(device))
    return 0
