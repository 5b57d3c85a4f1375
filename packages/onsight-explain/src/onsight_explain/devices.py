"""The devices that torch can use, their capabilities and their free memory."""

import os
from pathlib import Path
from typing import Any

import torch
from torch.utils import backend_registration

from onsight_explain.host_memory import free_host_bytes

_BUILT_IN = ("cuda", "xpu", "mps")
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    # CUDA's libraries raise these errors when no memory is left for their workspace.
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "unable to find an engine to execute this computation",
)

# Which devices there are


def available_devices() -> list[str]:
    """Return the names of the usable devices, the best first; cpu is always the last."""
    kinds = [kind for kind in _BUILT_IN if _is_available(kind)]
    registered = torch.accelerator.current_accelerator(check_available=True)
    if registered is not None and registered.type not in _BUILT_IN:
        kinds.append(registered.type)
    names = []
    for kind in kinds:
        if has_indices(kind):
            count = getattr(torch, kind).device_count()
            names += [f"{kind}:{number}" for number in range(count)]
        else:
            names.append(kind)
    return [*names, "cpu"]


def is_cpu_build_beside_gpu() -> bool:
    """Return whether there is an NVIDIA driver, but torch was built without CUDA."""
    build = torch.version.cuda or torch.version.hip
    return not build and Path("/proc/driver/nvidia/version").exists()


def can_register_python_device() -> bool:
    """Return whether this torch supports devices written in Python, like the simulated device."""
    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


# What a device can do


def module_of(device: torch.device) -> Any:
    """Return torch's module for an accelerator: torch.cuda, torch.xpu, or a registered one."""
    return getattr(torch, device.type)


def has_streams(device: torch.device) -> bool:
    """Return whether the device computes and copies in streams beside the host, with events.

    Apple's GPUs share the host's memory: there is nothing to copy ahead.
    """
    module = getattr(torch, device.type, None)
    return device.type not in ("cpu", "mps") and hasattr(module, "Stream")


def has_graphs(device: torch.device) -> bool:
    """Return whether the device can capture work in a graph, as NVIDIA's and AMD's GPUs can."""
    return hasattr(getattr(torch, device.type, None), "CUDAGraph") and device.type != "cpu"


def has_indices(kind: str) -> bool:
    """Return whether there may be several devices of a type, such as cuda:0 and cuda:1."""
    return kind not in ("cpu", "mps")


def has_float64(device: torch.device) -> bool:
    """Return whether the device computes in float64, unlike Apple's and some of Intel's GPUs."""
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type != "mps"


def has_bf16(device: torch.device) -> bool:
    """Return whether an NVIDIA or AMD GPU computes bf16 natively.

    torch.cuda.is_bf16_supported() answers for the current device only.
    """
    return device.type == "cuda" and (torch.version.hip is not None or _is_ampere(device))


def has_tf32(device: torch.device) -> bool:
    """Return whether tensor cores can compute fp32 as TF32: on NVIDIA's GPUs since Ampere."""
    return device.type == "cuda" and torch.version.hip is None and _is_ampere(device)


# Memory


def memory_bytes() -> int:
    """Return the machine's memory in bytes; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def free_memory_bytes(device: torch.device) -> int:
    """Return the free memory of a device in bytes; 0 if unknown."""
    if has_streams(device):
        free, _ = module_of(device).mem_get_info(device)
        return int(free)
    if device.type == "mps":
        free = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return max(0, free)
    return free_host_bytes()


def release_cached_memory(device: torch.device) -> None:
    """Return the memory that torch's allocator caches to an accelerator.

    The cache holds blocks of the sizes that were needed before, which may not suit the next work.
    """
    # torch.accelerator.empty_cache asserts on Apple's GPUs in torch 2.9.
    if device.type != "cpu":
        module_of(device).empty_cache()


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that memory ran out; not all devices have a type for it."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    message = str(error)
    return any(words in message for words in _OUT_OF_MEMORY)


def _is_available(kind: str) -> bool:
    module = torch.backends.mps if kind == "mps" else getattr(torch, kind, None)
    return module is not None and bool(module.is_available())


def _is_ampere(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)
