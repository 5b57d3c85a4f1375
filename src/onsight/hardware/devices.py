"""Which device a run uses, and why; asking for a missing device is an error."""

import os
import platform
from functools import cache
from pathlib import Path

import torch

from onsight.choice import Choice
from onsight.errors import DeviceError
from onsight.words import plural
from onsight_explain.devices import (
    available_devices,
    has_indices,
    has_streams,
    is_cpu_build_beside_gpu,
    memory_bytes,
    module_of,
)
from onsight_explain.threads import usable_cores


def choose_device(asked: str) -> Choice[torch.device]:
    """The device asked for, or the best available for `auto`. Raises DeviceError."""
    there = available_devices()
    if asked == "auto":
        return _best(there)
    name = asked if ":" in asked or not has_indices(asked) else f"{asked}:0"
    if name not in there:
        raise DeviceError(
            f"there is no device '{asked}'; available: {', '.join(there)}.{_why_missing(asked)}"
        )
    return Choice(torch.device(name), "as asked")


def choose_devices(asked: str, ranks: int) -> Choice[list[torch.device]]:
    """One device for each rank on this machine; ranks: 0 for one per device.

    asked: as for choose_device, or `all`, or several separated by commas. Raises DeviceError.
    """
    names = available_devices()[:-1] or ["cpu"] if asked == "all" else asked.split(",")
    chosen = [choose_device(name.strip()) for name in names]
    devices = [choice.value for choice in chosen]
    reason = chosen[0].reason if len(names) == 1 else "as asked"
    if len({device.type for device in devices}) > 1 or _repeats(devices):
        raise DeviceError(f"--device {asked}: all devices must be of one kind, each named once")
    if ranks in (0, len(devices)):
        return Choice(devices, reason)
    if devices == [torch.device("cpu")]:
        return Choice(devices * ranks, reason)
    if asked in ("auto", devices[0].type):
        devices = _first_of(devices[0].type, ranks)
        return Choice(devices, f"the first {ranks} that torch sees")
    raise DeviceError(
        f"--device {asked} names {plural(len(devices), 'device')} for {ranks} ranks; "
        "leave out --ranks"
    )


def choose_rank_device(asked: str, rank: int, ranks: int) -> Choice[torch.device]:
    """The device of one of the ranks that a launcher started on this machine. Raises DeviceError.

    asked: as for choose_devices. A launcher may show each rank a GPU of its own: cuda:0 for all.
    """
    shown = available_devices()[:-1]
    if ranks > 1 and len(shown) == 1 and has_indices(shown[0].partition(":")[0]):
        only = torch.device(shown[0])
        if asked in ("auto", "all", only.type, str(only)):
            return Choice(only, "the only one that this rank is shown")
    devices = choose_devices(asked, ranks)
    return Choice(devices.value[rank], devices.reason)


def physical_device(device: torch.device) -> str:
    """What tells a device from all others, also in other processes; empty if torch cannot say."""
    if not has_streams(device):
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if device.type == "cuda" and visible.startswith("MIG-"):
        return visible.partition(",")[0]  # a process computes on one slice; CUDA may name its GPU
    facts = module_of(device).get_device_properties(device)
    return str(getattr(facts, "uuid", ""))


def _repeats(devices: list[torch.device]) -> bool:
    return len(set(devices)) < len(devices)


def _first_of(kind: str, count: int) -> list[torch.device]:
    there = [name for name in available_devices() if name.partition(":")[0] == kind]
    if len(there) < count:
        raise DeviceError(
            f"{count} ranks need {count} devices, but there are only {', '.join(there)}; "
            "use fewer --ranks, or --device cpu"
        )
    return [torch.device(name) for name in there[:count]]


def describe_device(device: torch.device) -> str:
    """Name and memory of a device, in words."""
    if has_streams(device):
        facts = module_of(device).get_device_properties(device)
        return f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB"
    if device.type == "mps":
        return f"Apple GPU ({processor_name()})"
    return f"{processor_name()}, {usable_cores()} cores, {memory_bytes() / 2**30:.0f} GiB"


@cache
def processor_name() -> str:
    """The name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _best(there: list[str]) -> Choice[torch.device]:
    best = torch.device(there[0])
    if best.type != "cpu":
        others = f" of {len(there) - 1}" if len(there) > 2 else ""
        return Choice(best, f"the first accelerator{others} that torch sees")
    return Choice(best, f"torch sees no accelerator{_why_missing('cuda')}")


def _why_missing(asked: str) -> str:
    """A hint if the GPU is missing because torch was built without CUDA."""
    if asked.startswith("cuda") and is_cpu_build_beside_gpu():
        return " (there is an NVIDIA driver, but this torch is a CPU-only build)"
    return ""
