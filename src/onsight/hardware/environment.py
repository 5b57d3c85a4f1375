"""What a run ran on and with: the contents of environment.json."""

import platform
import sys
from importlib import metadata
from typing import Any

import torch

from onsight.hardware.devices import describe_device, processor_name
from onsight_explain.devices import memory_bytes
from onsight_explain.threads import usable_cores

_PACKAGES = ("onsight", "torch", "torchvision", "timm", "numpy", "pillow", "simplejpeg")


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Machine, device and versions as plain values."""
    return {
        "device": str(device),
        "device_name": describe_device(device),
        "processor": processor_name(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": memory_bytes(),
        "cuda": torch.version.cuda,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "versions": package_versions(),
    }


def package_versions() -> dict[str, str | None]:
    """The versions of the packages that results depend on; None if one is not installed."""
    return {name: version_of(name) for name in _PACKAGES}


def version_of(package: str) -> str | None:
    """An installed package's version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
