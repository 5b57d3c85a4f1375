"""How much memory of each GPU is free, and which processes use the rest."""

import os
from dataclasses import asdict, dataclass

import torch

from onsight.doctor.line import Line
from onsight.doctor.smi import SmiError, ask, mebibytes
from onsight.words import gib
from onsight_explain import accelerator
from onsight_explain.devices import available_devices

_SCARCE_SHARE = 0.5
_NAMED = 3  # processes named at most


@dataclass(frozen=True)
class Memory:
    """A GPU's memory, in bytes."""

    gpu: str
    total_bytes: int
    free_bytes: int

    @property
    def is_scarce(self) -> bool:
        """Whether less than half of it is free."""
        return self.free_bytes < _SCARCE_SHARE * self.total_bytes


def check_gpu_memory() -> Line | None:
    """Free memory of every GPU and, if scarce, which processes use the rest; None without GPUs."""
    gpus = _of_smi() or _of_torch()
    if not gpus:
        return None
    said = "; ".join(
        f"{one.gpu}: {gib(one.free_bytes)} of {gib(one.total_bytes)} free" for one in gpus
    )
    figures = {"gpus": [asdict(one) for one in gpus]}
    if not any(one.is_scarce for one in gpus):
        return Line("ok", f"{said}.", "", figures)
    holders = _holders()
    return Line(
        "warning",
        f"{said}.{_who(holders)}",
        "Wait for the other work to end, stop it, or choose another GPU, such as --device cuda:1.",
        figures | {"processes": holders},
    )


def _of_smi() -> list[Memory]:
    try:
        rows = ask("gpu", "index", "name", "memory.total", "memory.used")
    except SmiError:
        return []
    found = []
    for row in rows:
        total, used = mebibytes(row["memory.total"]), mebibytes(row["memory.used"])
        if total is not None and used is not None:  # unknown if it is shared with the CPU
            found.append(Memory(f"GPU {row['index']} ({row['name']})", total, total - used))
    return found


def _of_torch() -> list[Memory]:
    found = []
    for name in available_devices()[:-1]:
        device = torch.device(name)
        if accelerator.has_streams(device):
            free, total = accelerator.module_of(device).mem_get_info(name)
            found.append(Memory(name, int(total), int(free)))
    return found


def _holders() -> list[dict[str, str | int]]:
    """Other processes that use memory of a GPU, the largest first."""
    try:
        rows = ask("compute-apps", "pid", "process_name", "used_memory")
    except SmiError:
        return []
    processes: list[dict[str, str | int]] = [
        {
            "pid": int(row["pid"]),
            "name": row["process_name"].rpartition("/")[2],
            "bytes": mebibytes(row["used_memory"]) or 0,
        }
        for row in rows
        if row["pid"].isdecimal() and int(row["pid"]) != os.getpid()
    ]
    return sorted(processes, key=lambda one: -int(one["bytes"]))


def _who(holders: list[dict[str, str | int]]) -> str:
    if not holders:
        return (
            " The driver does not say what uses the rest; it may be the screen or another "
            "container."
        )
    words = [
        f"{one['name']} (process {one['pid']}) uses {gib(int(one['bytes']))}"
        for one in holders[:_NAMED]
    ]
    return f" {', '.join(words)}."
