"""What a device can do, asked of torch's module for it, whatever its name is."""

from typing import Any

import torch
from torch.utils import backend_registration

_KNOWN = ("cuda", "xpu", "mps")


def module_of(device: torch.device) -> Any:
    """torch's module for an accelerator: torch.cuda, torch.xpu, or one that was registered."""
    return getattr(torch, device.type)


def has_streams(device: torch.device) -> bool:
    """Whether the device computes and copies in streams beside the host, and tells by events.

    Apple's GPUs share the host's memory: there is nothing to copy ahead.
    """
    return device.type not in ("cpu", "mps") and hasattr(
        getattr(torch, device.type, None), "Stream"
    )


def has_graphs(device: torch.device) -> bool:
    """Whether work can be recorded once and launched at once: NVIDIA's and AMD's GPUs."""
    return hasattr(getattr(torch, device.type, None), "CUDAGraph") and device.type != "cpu"


def has_indices(kind: str) -> bool:
    """Whether there may be several devices of a kind, told apart by a number."""
    return kind not in ("cpu", "mps")


def has_float64(device: torch.device) -> bool:
    """Whether the device computes in float64, which Apple's and some of Intel's GPUs do not."""
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type != "mps"


def has_bf16(device: torch.device) -> bool:
    """Whether an NVIDIA or AMD GPU computes bf16 natively; torch tells only of the current one."""
    return device.type == "cuda" and (torch.version.hip is not None or _is_ampere(device))


def has_tf32(device: torch.device) -> bool:
    """Whether the device can round fp32 to TF32 for tensor cores: NVIDIA's GPUs since Ampere."""
    return device.type == "cuda" and torch.version.hip is None and _is_ampere(device)


def kinds() -> list[str]:
    """The kinds of accelerators that torch can use here, the best first."""
    there = [kind for kind in _KNOWN if _is_available(kind)]
    registered = torch.accelerator.current_accelerator(check_available=True)
    if registered is not None and registered.type not in _KNOWN:
        there.append(registered.type)
    return there


def _is_ampere(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _is_available(kind: str) -> bool:
    module = torch.backends.mps if kind == "mps" else getattr(torch, kind, None)
    return module is not None and bool(module.is_available())


def can_register_python_device() -> bool:
    """Whether this torch can have a device that is written in Python, as the simulated one is."""
    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
