"""The cores that may be used, the threads that would run on them, and how busy they are."""

import os
from pathlib import Path

import torch

from onsight.doctor.line import Line
from onsight.words import plural
from onsight_explain.cores import usable_cores

_CPUS = Path("/sys/devices/system/cpu")
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_FEW_SHARE = 0.5
_BUSY_SHARE = 0.5  # of the machine's cores, taken by others


def check_cores() -> Line:
    """Compare the cores (by affinity and quota) with torch's threads and OMP_NUM_THREADS."""
    cores, threads, physical = usable_cores(), torch.get_num_threads(), _physical_cores()
    figures = {
        "cores": cores,
        "machine_cores": os.cpu_count(),
        "affinity_cores": len(_affinity()),
        "physical_cores": physical,
        "torch_threads": threads,
        **{name: os.environ.get(name) for name in _VARIABLES},
    }
    said = _describe_cores(cores, physical)
    too_many = [name for name in _VARIABLES if _variable(name) > cores]
    too_few = [name for name in _VARIABLES if 0 < _variable(name) < _FEW_SHARE * cores]
    if too_many:
        return Line(
            "warning",
            f"{said}, but {_settings(too_many)}: with more threads than cores they wait for one "
            "another, and training can be several times slower.",
            f"Unset it; Onsight chooses its own number:\nunset {' '.join(too_many)}",
            figures,
        )
    if threads > cores:
        return Line(
            "warning",
            f"{said}, but torch would use {plural(threads, 'thread')} by default, because it "
            "does not know the container's limit.",
            f"Onsight respects the limit; for other programs:\nexport OMP_NUM_THREADS={cores}",
            figures,
        )
    if too_few:
        return Line(
            "note",
            f"{said}, but {_settings(too_few)}. Onsight chooses its own number; other programs "
            "will leave cores idle.",
            f"If that is not intended:\nunset {' '.join(too_few)}",
            figures,
        )
    return Line("ok", f"{said}; torch uses {plural(threads, 'thread')}.", "", figures)


def check_load() -> Line | None:
    """How busy the machine is with other work; None where the system does not say."""
    if not hasattr(os, "getloadavg"):
        return None
    load, machine = os.getloadavg()[0], os.cpu_count() or 1
    figures = {"load": load, "machine_cores": machine}
    said = (
        f"Over the last minute {load:.1f} threads on average ran on, or waited for, the "
        f"{plural(machine, 'core')} of this machine"
    )
    if load > _BUSY_SHARE * machine:
        return Line(
            "warning",
            f"{said}: other work slows training down, and distorts what is measured now.",
            "Wait until it ends; `top` shows what it is.",
            figures,
        )
    return Line("ok", f"{said}.", "", figures)


def _describe_cores(cores: int, physical: int | None) -> str:
    affinity, machine = len(_affinity()), os.cpu_count() or 1
    said = f"{plural(cores, 'core')} may be used"
    if cores < affinity:
        said += f" (the container's quota; the machine has {machine})"
    elif affinity < machine:
        said += f" (by affinity; the machine has {machine})"
    if physical and physical < affinity:
        said += f", which are hyperthreads of {physical} physical ones"
    return said


def _affinity() -> set[int]:
    affinity = getattr(os, "sched_getaffinity", None)
    return affinity(0) if affinity else set(range(os.cpu_count() or 1))


def _physical_cores() -> int | None:
    """Physical cores behind the hardware threads that may be used; None where unknown."""
    siblings = set()
    for number in _affinity():
        path = _CPUS / f"cpu{number}" / "topology" / "thread_siblings_list"
        try:
            siblings.add(path.read_text(encoding="utf-8").strip())
        except OSError:
            return None
    return len(siblings)


def _variable(name: str) -> int:
    """The number that a variable is set to; 0 if it is not set to a number."""
    text = os.environ.get(name, "").partition(",")[0].strip()
    return int(text) if text.isdecimal() else 0


def _settings(names: list[str]) -> str:
    return " and ".join(f"{name}={os.environ[name]}" for name in names)
