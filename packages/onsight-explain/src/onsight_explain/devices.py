"""Which devices torch can use, and how much of their memory is free."""

import os
from pathlib import Path

import torch

from onsight_explain import accelerator

_CGROUP = Path("/sys/fs/cgroup")


def available_devices() -> list[str]:
    """Names of the devices that torch can use here, the best first; cpu is always the last."""
    names = []
    for kind in accelerator.kinds():
        if accelerator.has_indices(kind):
            count = getattr(torch, kind).device_count()
            names += [f"{kind}:{number}" for number in range(count)]
        else:
            names.append(kind)
    return [*names, "cpu"]


def is_cpu_build_beside_gpu() -> bool:
    """Whether there is an NVIDIA driver, but torch was built without CUDA."""
    build = torch.version.cuda or torch.version.hip
    return not build and Path("/proc/driver/nvidia/version").exists()


def memory_bytes() -> int:
    """The machine's memory in bytes; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def free_memory_bytes(device: torch.device) -> int:
    """Free memory of a device, in bytes; 0 if unknown."""
    if accelerator.has_streams(device):
        free, _ = accelerator.module_of(device).mem_get_info(device)
        return int(free)
    if device.type == "mps":
        most = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return max(0, most)
    free = _machine_room()
    granted = _cgroup_room()
    return free if granted is None else min(free, granted)


def _machine_room() -> int:
    """Memory that is available without swapping, including file caches."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _cgroup_room() -> int | None:
    """Bytes left below the cgroup's memory limit (v2, then v1), or None if there is no limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            most, taken = (int((_CGROUP / name).read_text()) for name in (limit, used))
        except (OSError, ValueError):  # the file is missing, or says "max"
            continue
        return max(0, most - taken)
    return None
