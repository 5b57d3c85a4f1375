"""Checks of the machine: cores, memory, limits of containers and shells, and peak speeds."""

import os
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from onsight.doctor.report import CheckResult
from onsight.text import gib, plural
from onsight_explain.ceilings import Ceilings, measure_ceilings
from onsight_explain.devices import available_devices, free_memory_bytes, memory_bytes
from onsight_explain.text import flops_words, rate_words
from onsight_explain.threads import usable_cores

_CPUS = Path("/sys/devices/system/cpu")
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_FEW_THREADS_RATIO = 0.5  # threads per usable core; fewer leave cores idle
_BUSY_RATIO = 0.5  # load per core above which other work slows training down

_PROC = Path("/proc")
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_TOO_LITTLE_BYTES = 512 << 20  # roughly the memory that torch alone needs
_LITTLE_BYTES = 2 << 30
_MAX_NAMED_PROCESSES = 3

_SHARED_MEMORY = Path("/dev/shm")
_ENOUGH_SHARED_BYTES = 1 << 30
_ENOUGH_FILES = 1024
_MANY_FILES = 4096
_SLOW_LINK_BYTES_PER_SECOND = 3e9


def check_cores() -> CheckResult:
    """Compare the usable cores (by affinity and quota) with torch's threads and OMP_NUM_THREADS."""
    cores, threads, physical = usable_cores(), torch.get_num_threads(), _physical_cores()
    figures = {
        "cores": cores,
        "machine_cores": os.cpu_count(),
        "affinity_cores": len(_affinity()),
        "physical_cores": physical,
        "torch_threads": threads,
        **{name: os.environ.get(name) for name in _VARIABLES},
    }
    message = _describe_cores(cores, physical)
    too_many = [name for name in _VARIABLES if _variable(name) > cores]
    too_few = [name for name in _VARIABLES if 0 < _variable(name) < _FEW_THREADS_RATIO * cores]
    if too_many:
        return CheckResult(
            "warning",
            f"{message}, but {_settings(too_many)}: threads beyond the number of cores wait for "
            "one another, and training can be several times slower.",
            f"Unset it; Onsight chooses its own number:\nunset {' '.join(too_many)}",
            figures,
        )
    if threads > cores:
        return CheckResult(
            "warning",
            f"{message}, but torch would use {plural(threads, 'thread')} by default, because it "
            "ignores the container's limit.",
            f"Onsight respects the limit; for other programs:\nexport OMP_NUM_THREADS={cores}",
            figures,
        )
    if too_few:
        return CheckResult(
            "note",
            f"{message}, but {_settings(too_few)}. Onsight chooses its own number; other programs "
            "will leave cores idle.",
            f"If that is not intended:\nunset {' '.join(too_few)}",
            figures,
        )
    return CheckResult("ok", f"{message}; torch uses {plural(threads, 'thread')}.", "", figures)


def check_load() -> CheckResult | None:
    """Check the machine's load; None where the system does not report it."""
    if not hasattr(os, "getloadavg"):
        return None
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    figures = {"load": load, "machine_cores": cores}
    message = (
        f"On average over the last minute, {load:.1f} threads were running or waiting on "
        f"{plural(cores, 'core')}"
    )
    if load > _BUSY_RATIO * cores:
        return CheckResult(
            "warning",
            f"{message}: other work slows training down, and distorts the speeds measured now.",
            "Wait until it ends; `top` shows the processes.",
            figures,
        )
    return CheckResult("ok", f"{message}.", "", figures)


def check_memory() -> CheckResult:
    """Check the free memory within a container's limit; if it is scarce, name large processes."""
    total = min(_cgroup_limit() or memory_bytes(), memory_bytes())
    is_limited = total < memory_bytes()
    free = free_memory_bytes(torch.device("cpu"))
    figures = {"total_bytes": total, "free_bytes": free, "is_limited": is_limited}
    of_container = " (the container's limit)" if is_limited else ""
    swap, swap_used = _swap_bytes()
    message = f"{gib(free)} of {gib(total)}{of_container} free; " + (
        f"{gib(swap_used)} of {gib(swap)} swap used." if swap else "no swap."
    )
    figures |= {"swap_bytes": swap, "swap_used_bytes": swap_used}
    if free >= _LITTLE_BYTES:
        return CheckResult("ok", message, "", figures)
    largest = _largest_processes()
    names = ", ".join(f"{name} (process {pid}, {gib(size)})" for pid, name, size in largest)
    return CheckResult(
        "problem" if free < _TOO_LITTLE_BYTES else "warning",
        f"{message} The largest processes: {names or 'unknown'}.",
        "Stop unneeded processes, or give the container more memory; a smaller --batch-size or "
        "--image-size needs less.",
        figures
        | {"processes": [{"pid": pid, "name": name, "bytes": size} for pid, name, size in largest]},
    )


def check_shared_memory() -> CheckResult | None:
    """Check the free space in /dev/shm, which DataLoader workers need; None if there is none."""
    if not _SHARED_MEMORY.exists():
        return None
    usage = shutil.disk_usage(_SHARED_MEMORY)
    figures = {"total_bytes": usage.total, "free_bytes": usage.free}
    if min(usage.total, usage.free) >= _ENOUGH_SHARED_BYTES:
        return CheckResult("ok", f"{gib(usage.free)} free in {_SHARED_MEMORY}.", "", figures)
    return CheckResult(
        "warning",
        f"Only {gib(usage.free)} of {gib(usage.total)} free in {_SHARED_MEMORY}. Onsight decodes "
        "in threads and does not need it, but a DataLoader with worker processes fails without it.",
        "Give the container more:\ndocker run --shm-size 8g ...",
        figures,
    )


def check_open_files() -> CheckResult | None:
    """Check how many files a process may have open; None where there is no such limit."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    figures = {
        "soft": None if soft == unlimited else soft,
        "hard": None if hard == unlimited else hard,
    }
    if soft == unlimited or soft >= _ENOUGH_FILES:
        limit = "any number of" if soft == unlimited else f"{soft:,}"
        return CheckResult("ok", f"A process may open {limit} files.", "", figures)
    higher = _MANY_FILES if hard == unlimited else min(hard, _MANY_FILES)
    return CheckResult(
        "warning",
        f"A process may open only {soft:,} files; several ranks or workers can need more.",
        f"Raise the limit in this shell:\nulimit -n {higher}"
        if higher > soft
        else "Ask the machine's administrator to raise the limit on open files (nofile).",
        figures,
    )


def check_cpu_speed(seconds: float = 0.3) -> CheckResult:
    """Measure arithmetic and copies on all usable cores, and compare bf16 with fp32."""
    ceilings = measure_ceilings(torch.device("cpu"), usable_cores(), seconds)
    speedup = ceilings.speedup("bf16")
    is_slower = speedup is not None and speedup < 1
    return CheckResult(
        "note" if is_slower else "ok",
        f"{plural(ceilings.threads or 1, 'thread')}: {_describe_speeds(ceilings)}."
        + (" bf16 is slower here; --precision auto uses fp32." if is_slower else ""),
        figures=asdict(ceilings),
    )


def check_gpu_speed(seconds: float = 0.2) -> CheckResult | None:
    """Measure arithmetic, copies and uploads of every accelerator; None if there are none."""
    names = available_devices()[:-1]
    if not names:
        return None
    measured = {name: measure_ceilings(torch.device(name), seconds=seconds) for name in names}
    message = "; ".join(
        f"{name}: {_describe_speeds(ceilings)}" for name, ceilings in measured.items()
    )
    figures = {name: asdict(ceilings) for name, ceilings in measured.items()}
    slow = [name for name, ceilings in measured.items() if _has_slow_link(ceilings)]
    if slow:
        return CheckResult(
            "warning",
            f"{message}. Uploads from memory to {', '.join(slow)} are slow.",
            "Onsight keeps images in the GPU's memory if they fit. Check that the card is "
            "in a slot with all its PCIe lanes.",
            figures,
        )
    return CheckResult("ok", f"{message}.", "", figures)


def _describe_cores(cores: int, physical: int | None) -> str:
    affinity, machine = len(_affinity()), os.cpu_count() or 1
    text = f"{plural(cores, 'core')} can be used"
    if cores < affinity:
        text += f" (the container's quota; the machine has {machine})"
    elif affinity < machine:
        text += f" (by affinity; the machine has {machine})"
    if physical and physical < affinity:
        text += f", which are hyperthreads of {plural(physical, 'physical core')}"
    return text


def _affinity() -> set[int]:
    affinity = getattr(os, "sched_getaffinity", None)
    return affinity(0) if affinity else set(range(os.cpu_count() or 1))


def _physical_cores() -> int | None:
    """Return the number of physical cores behind the usable hardware threads; None if unknown."""
    siblings = set()
    for core in _affinity():
        path = _CPUS / f"cpu{core}" / "topology" / "thread_siblings_list"
        try:
            siblings.add(path.read_text(encoding="utf-8").strip())
        except OSError:
            return None
    return len(siblings)


def _variable(name: str) -> int:
    """Return the value of an environment variable; 0 if it is not a number."""
    text = os.environ.get(name, "").partition(",")[0].strip()
    return int(text) if text.isdecimal() else 0


def _settings(names: list[str]) -> str:
    return " and ".join(f"{name}={os.environ[name]}" for name in names)


def _cgroup_limit() -> int | None:
    """Return the memory limit of the cgroup (v2, then v1), if it has one."""
    for path in _CGROUP_LIMITS:
        try:
            return int(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # the file is missing, or contains "max"
            continue
    return None


def _swap_bytes() -> tuple[int, int]:
    """Return (total, used) bytes of swap."""
    kibibytes = {"SwapTotal": 0, "SwapFree": 0}
    with suppress(OSError):
        for line in (_PROC / "meminfo").read_text(encoding="utf-8").splitlines():
            name, _, rest = line.partition(":")
            if name in kibibytes:
                kibibytes[name] = int(rest.split()[0])
    return kibibytes["SwapTotal"] << 10, (kibibytes["SwapTotal"] - kibibytes["SwapFree"]) << 10


def _largest_processes() -> list[tuple[int, str, int]]:
    """Return (id, name, resident bytes) of the largest processes other than this one."""
    processes = []
    for folder in _PROC.glob("[0-9]*"):
        try:
            pages = int((folder / "statm").read_text(encoding="utf-8").split()[1])
            name = (folder / "comm").read_text(encoding="utf-8").strip()
        except (OSError, ValueError, IndexError):  # the process has ended
            continue
        if int(folder.name) != os.getpid():
            processes.append((int(folder.name), name, pages * os.sysconf("SC_PAGE_SIZE")))
    return sorted(processes, key=lambda process: -process[2])[:_MAX_NAMED_PROCESSES]


def _describe_speeds(ceilings: Ceilings) -> str:
    rates = [
        f"{flops_words(rate)} in {precision}{_describe_speedup(ceilings, precision)}"
        for precision, rate in ceilings.flops_per_second.items()
    ]
    copies = rate_words(ceilings.copy_bytes_per_second)
    text = f"matrix products {', '.join(rates)}; copies {copies}"
    if ceilings.pinned_upload_bytes_per_second:
        text += f"; uploads {rate_words(ceilings.pinned_upload_bytes_per_second)}"
    return text


def _describe_speedup(ceilings: Ceilings, precision: str) -> str:
    speedup = ceilings.speedup(precision)
    return "" if precision == "fp32" or speedup is None else f" ({speedup:.1f}x)"


def _has_slow_link(ceilings: Ceilings) -> bool:
    rate = ceilings.pinned_upload_bytes_per_second
    return rate is not None and rate < _SLOW_LINK_BYTES_PER_SECOND
