"""Choose the device of a run, with a reason; a missing device is an error."""

import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from onsight.choice import Choice
from onsight.errors import DeviceError
from onsight.installation import package_version
from onsight.text import plural
from onsight_explain.devices import (
    available_devices,
    has_indices,
    has_streams,
    is_cpu_build_beside_gpu,
    memory_bytes,
    module_of,
)
from onsight_explain.threads import usable_cores

_PACKAGES = ("onsight", "torch", "torchvision", "timm", "numpy", "pillow", "simplejpeg")


def choose_device(requested: str) -> Choice[torch.device]:
    """Return the requested device, or the best available for `auto`. Raises DeviceError."""
    available = available_devices()
    if requested == "auto":
        return _choose_best(available)
    has_number = ":" in requested or not has_indices(requested)
    name = requested if has_number else f"{requested}:0"
    if name not in available:
        raise DeviceError(
            f"there is no device '{requested}'; available: {', '.join(available)}."
            f"{_why_missing(requested)}"
        )
    return Choice(torch.device(name), "set by you")


def choose_devices(requested: str, ranks: int) -> Choice[list[torch.device]]:
    """Return one device for each rank on this machine; ranks: 0 for one per device.

    requested: as for choose_device, or `all`, or several separated by commas. Raises DeviceError.
    """
    names = available_devices()[:-1] or ["cpu"] if requested == "all" else requested.split(",")
    chosen = [choose_device(name.strip()) for name in names]
    devices = [choice.value for choice in chosen]
    reason = chosen[0].reason if len(names) == 1 else "set by you"
    kinds = {device.type for device in devices}
    if len(kinds) > 1 or len(set(devices)) < len(devices):
        raise DeviceError(f"--device {requested}: all devices must be of one kind, each named once")
    if ranks in (0, len(devices)):
        return Choice(devices, reason)
    if devices == [torch.device("cpu")]:
        return Choice(devices * ranks, reason)
    if requested in ("auto", devices[0].type):
        devices = _first_devices(devices[0].type, ranks)
        return Choice(devices, f"the first {ranks} that torch finds")
    raise DeviceError(
        f"--device {requested} names {plural(len(devices), 'device')} for {ranks} ranks; "
        "remove --ranks"
    )


def choose_rank_device(requested: str, rank: int, ranks: int) -> Choice[torch.device]:
    """Return the device of one of the ranks that a launcher started on this machine.

    requested: as for choose_devices. A launcher may expose to each rank only one GPU,
    called cuda:0 on every rank. Raises DeviceError.
    """
    visible = available_devices()[:-1]
    if ranks > 1 and len(visible) == 1 and has_indices(visible[0].partition(":")[0]):
        only = torch.device(visible[0])
        if requested in ("auto", "all", only.type, str(only)):
            return Choice(only, "the only one visible to this rank")
    devices = choose_devices(requested, ranks)
    return Choice(devices.value[rank], devices.reason)


def physical_device(device: torch.device) -> str:
    """Return an identifier equal in all processes that use a device, empty if torch has none."""
    if not has_streams(device):
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if device.type == "cuda" and visible.startswith("MIG-"):
        return visible.partition(",")[0]  # a process computes on one slice; CUDA may name its GPU
    facts = module_of(device).get_device_properties(device)
    return str(getattr(facts, "uuid", ""))


def describe_device(device: torch.device) -> str:
    """Return the name and memory of a device, in words."""
    if has_streams(device):
        facts = module_of(device).get_device_properties(device)
        return f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB"
    if device.type == "mps":
        return f"Apple GPU ({processor_name()})"
    return f"{processor_name()}, {usable_cores()} cores, {memory_bytes() / 2**30:.0f} GiB"


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return machine, device and versions as plain values: the contents of environment.json."""
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
    """Return the versions of the packages that results depend on; None if not installed."""
    return {name: package_version(name) for name in _PACKAGES}


@cache
def processor_name() -> str:
    """Return the name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _choose_best(available: list[str]) -> Choice[torch.device]:
    best = torch.device(available[0])
    if best.type != "cpu":
        others = f" of {len(available) - 1}" if len(available) > 2 else ""
        return Choice(best, f"the first accelerator{others} that torch finds")
    return Choice(best, f"torch finds no accelerator{_why_missing('cuda')}")


def _first_devices(kind: str, count: int) -> list[torch.device]:
    available = [name for name in available_devices() if name.partition(":")[0] == kind]
    if len(available) < count:
        raise DeviceError(
            f"{count} ranks need {count} devices, but there are only {', '.join(available)}; "
            "use fewer --ranks, or --device cpu"
        )
    return [torch.device(name) for name in available[:count]]


def _why_missing(requested: str) -> str:
    """Return a hint if a GPU is missing because torch was built without CUDA."""
    if requested.startswith("cuda") and is_cpu_build_beside_gpu():
        return " (there is an NVIDIA driver, but this torch is a CPU-only build)"
    return ""
