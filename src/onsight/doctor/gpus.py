"""Checks of GPUs: those found by the driver compared with those torch can use, and memory."""

import os
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from onsight.doctor.nvidia import (
    Driver,
    SmiError,
    Version,
    count_on_bus,
    find_build,
    find_driver,
    install_commands,
    is_unsupported,
    parse_mebibytes,
    parse_version,
    query_smi,
)
from onsight.doctor.report import CheckResult, Status
from onsight.text import gib, plural
from onsight_explain.devices import available_devices, has_streams, module_of

_CONTROL = Path("/dev/nvidiactl")  # missing in a container started without GPUs
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER_PAGE = "https://www.nvidia.com/drivers"
_ON_CPU = "training runs on the CPU"
_WARNING_LENGTH = 200  # characters of torch's warning
_SCARCE_RATIO = 0.5  # fraction of a GPU's memory; warn if less is free
_MAX_NAMED_PROCESSES = 3


@dataclass(frozen=True)
class GpuSurvey:
    """The GPUs of this machine according to the NVIDIA driver and to torch."""

    driver: Driver
    visible: list[str]  # names of the GPUs that torch can use, such as cuda:0
    torch_cuda: Version | None
    torch_warning: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def gpus(self) -> str:
        """Text such as `2 GPUs (NVIDIA A100, NVIDIA T4)`, by the driver or else by torch."""
        kinds = Counter(self.driver.gpus or self.visible)
        names = [name if count == 1 else f"{count} {name}" for name, count in kinds.items()]
        return f"{plural(kinds.total(), 'GPU')} ({', '.join(names)})"

    @property
    def hidden(self) -> int:
        """The number of the driver's GPUs that are not visible to torch."""
        return max(0, len(self.driver.gpus) - len(self.visible))

    def result(self, status: Status, message: str, remedy: str = "") -> CheckResult:
        """Return a result with the figures of the survey."""
        return CheckResult(status, message, remedy, self.figures)


@dataclass(frozen=True)
class GpuMemory:
    """A GPU's memory, in bytes."""

    gpu: str
    total_bytes: int
    free_bytes: int


def check_gpus() -> CheckResult:
    """Check that torch can use every NVIDIA GPU of this machine, or another accelerator."""
    driver = find_driver()
    visible, torch_warning = _visible_to_torch()
    if driver is None:
        return _without_driver(visible)
    cuda = [name for name in visible if name.startswith("cuda")]
    figures = {
        "driver": driver.version,
        "driver_cuda": _dotted(driver.cuda) if driver.cuda else None,
        "torch_cuda": torch.version.cuda,
        "cudnn": _cudnn_version(),
        "gpus": driver.gpus,
        "in_mig_mode": driver.mig_gpus,
        "seen": visible,
    }
    torch_cuda = parse_version(torch.version.cuda or "")
    survey = GpuSurvey(driver, cuda, torch_cuda, torch_warning, figures)
    results = (diagnose(survey) for diagnose in _DIAGNOSES)
    return next(result for result in results if result)


def check_gpu_memory() -> CheckResult | None:
    """Check the free memory of every GPU; None without GPUs.

    If it is scarce, the processes that use the rest are named.
    """
    gpus = _memory_by_smi() or _memory_by_torch()
    if not gpus:
        return None
    message = "; ".join(
        f"{memory.gpu}: {gib(memory.free_bytes)} of {gib(memory.total_bytes)} free"
        for memory in gpus
    )
    figures = {"gpus": [asdict(memory) for memory in gpus]}
    if all(memory.free_bytes >= _SCARCE_RATIO * memory.total_bytes for memory in gpus):
        return CheckResult("ok", f"{message}.", "", figures)
    processes = _gpu_processes()
    return CheckResult(
        "warning",
        f"{message}.{_describe_processes(processes)}",
        "Wait for the other work to end, stop it, or choose another GPU, such as --device cuda:1.",
        figures | {"processes": processes},
    )


# ------------------------------------------------------------ why torch lacks a GPU


def _without_driver(visible: list[str]) -> CheckResult:
    if visible:
        return CheckResult("ok", f"torch can use {', '.join(visible)}.", "", {"seen": visible})
    on_bus = count_on_bus()
    if on_bus:
        return CheckResult(
            "warning",
            f"The machine has {plural(on_bus, 'NVIDIA GPU')}, but no NVIDIA driver is loaded: "
            f"{_ON_CPU}.",
            f"To use it, install the driver ({_DRIVER_PAGE}) and restart the machine.",
            {"seen": visible, "gpus_on_bus": on_bus},
        )
    return CheckResult(
        "note", f"There is no GPU that torch can use: {_ON_CPU}.", figures={"seen": visible}
    )


def _smi_failed(survey: GpuSurvey) -> CheckResult | None:
    error = survey.driver.smi_error
    if not error or survey.visible:
        return None
    if not count_on_bus():
        return survey.result(
            "note",
            f"NVIDIA's tools are installed, but there is no NVIDIA GPU ({error}): {_ON_CPU}.",
        )
    remedy = "Install or repair the NVIDIA driver, then restart the machine."
    if "mismatch" in error:
        remedy = "The driver was updated while it was in use: restart the machine."
    return survey.result("problem", f"The NVIDIA driver does not respond: {error}", remedy)


def _driver_without_gpus(survey: GpuSurvey) -> CheckResult | None:
    if survey.driver.gpus or survey.visible:
        return None
    return survey.result(
        "note", f"There is an NVIDIA driver ({survey.driver.version}), but no GPU: {_ON_CPU}."
    )


def _torch_without_cuda(survey: GpuSurvey) -> CheckResult | None:
    if survey.torch_cuda:
        return None
    kind = "built for ROCm" if torch.version.hip else "a CPU-only build"
    return survey.result(
        "problem",
        f"The machine has {survey.gpus}, but this torch ({torch.__version__}) is {kind}, "
        "which cannot use it.",
        _install(survey.driver),
    )


def _container_without_gpus(survey: GpuSurvey) -> CheckResult | None:
    if survey.visible or survey.driver.has_smi or _CONTROL.exists():
        return None
    return survey.result(
        "problem",
        f"The machine has {survey.gpus}, but no program here can use it ({_CONTROL} is missing), "
        "as in a container started without GPUs.",
        "Start the container with GPUs; the host needs the NVIDIA Container Toolkit:\n"
        "docker run --gpus all ...",
    )


def _driver_too_old(survey: GpuSurvey) -> CheckResult | None:
    supported, needed = survey.driver.cuda, survey.torch_cuda
    if survey.visible or not supported or not needed or supported[0] >= needed[0]:
        return None
    return survey.result(
        "problem",
        f"The NVIDIA driver {survey.driver.version} supports CUDA up to {_dotted(supported)}, but "
        f"this torch is built for CUDA {_dotted(needed)}: {survey.gpus} cannot be used.",
        _install(
            survey.driver,
            sentence=f"Install a newer driver ({_DRIVER_PAGE}), or a torch built for this one:",
        ),
    )


def _kernels_missing(survey: GpuSurvey) -> CheckResult | None:
    built = torch.cuda.get_arch_list()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about the problem that is diagnosed here
        capabilities = {name: torch.cuda.get_device_capability(name) for name in survey.visible}
    missing = [name for name, gpu in capabilities.items() if is_unsupported(built, gpu)]
    if not missing or not built:
        return None
    versions = ", ".join(_dotted(capabilities[name]) for name in missing)
    return survey.result(
        "problem",
        f"This torch has no code for {', '.join(missing)}, of compute capability {versions}; "
        f"it was built for {' '.join(built)}.",
        _install(survey.driver, [capabilities[name] for name in missing]),
    )


def _in_mig_mode(survey: GpuSurvey) -> CheckResult | None:
    """Report GPUs in MIG mode: with one, a program can use a single slice and no other GPU."""
    mig_gpus = survey.driver.mig_gpus
    if not mig_gpus or (not survey.visible and os.environ.get(_VISIBLE) is not None):
        return None
    verb = "is" if mig_gpus == 1 else "are"
    sliced = f"{mig_gpus} of {survey.gpus} {verb} cut into slices (MIG mode)"
    if survey.visible:
        return survey.result(
            "note",
            f"{sliced}: a program gets one slice, with its share of memory and speed, and no "
            "other GPU.",
            "Each run can use a separate slice, by its name from nvidia-smi -L; to use whole "
            "GPUs, their administrator can end MIG mode:\n"
            f"{_VISIBLE}=MIG-... onsight train ...\n"
            "sudo nvidia-smi -mig 0",
        )
    return survey.result(
        "problem",
        f"{sliced}, but no slice is visible to torch: {_ON_CPU}.",
        "Ask the administrator for a slice, or end MIG mode:\nsudo nvidia-smi -mig 0",
    )


def _hidden_by_variable(survey: GpuSurvey) -> CheckResult | None:
    value = os.environ.get(_VISIBLE)
    if value is None or not survey.hidden:
        return None
    return survey.result(
        "note" if survey.visible else "warning",
        f"{_VISIBLE}={value!r} hides {survey.hidden} of {survey.gpus} from torch.",
        f"If that is not intended:\nunset {_VISIBLE}",
    )


def _missing_in_torch(survey: GpuSurvey) -> CheckResult | None:
    if not survey.hidden:
        return None
    warning = f" Torch's warning: {survey.torch_warning}" if survey.torch_warning else ""
    return survey.result(
        "problem",
        f"The driver finds {survey.gpus}, but torch finds {len(survey.visible) or 'none'}."
        f"{warning}",
        f"Restart the machine. If that does not help, install the newest driver ({_DRIVER_PAGE}).",
    )


def _all_usable(survey: GpuSurvey) -> CheckResult:
    driver, cudnn = survey.driver, survey.figures["cudnn"]
    return survey.result(
        "ok",
        f"torch can use {survey.gpus}: driver {driver.version}"
        + (f" for CUDA up to {_dotted(driver.cuda)}" if driver.cuda else "")
        + (f", torch for CUDA {_dotted(survey.torch_cuda)}" if survey.torch_cuda else "")
        + (f" with cuDNN {cudnn}" if cudnn else "")
        + ".",
    )


# Only the first result is reported, so causes come before their consequences.
_DIAGNOSES: tuple[Callable[[GpuSurvey], CheckResult | None], ...] = (
    _smi_failed,
    _driver_without_gpus,
    _torch_without_cuda,
    _container_without_gpus,
    _driver_too_old,
    _kernels_missing,
    _in_mig_mode,
    _hidden_by_variable,
    _missing_in_torch,
    _all_usable,
)


def _visible_to_torch() -> tuple[list[str], str]:
    """Return torch's names of the accelerators, and the first line of its warning, if any."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names = available_devices()[:-1]
    text = str(caught[0].message).strip().partition("\n")[0] if caught else ""
    return names, text[:_WARNING_LENGTH]


def _cudnn_version() -> str | None:
    number = torch.backends.cudnn.version() if torch.version.cuda else None
    if not number:
        return None
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _install(
    driver: Driver,
    capabilities: list[Version] | None = None,
    sentence: str = "Install a torch built for this driver:",
) -> str:
    """Return how to install a torch that fits the driver or, if none does, a newer driver."""
    build = driver.cuda and find_build(driver.cuda, capabilities or driver.capabilities)
    if build:
        return f"{sentence}\n{install_commands(build)}"
    return f"Install the newest NVIDIA driver ({_DRIVER_PAGE}), then: onsight doctor"


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


# --------------------------------------------------------------------------- memory


def _memory_by_smi() -> list[GpuMemory]:
    try:
        rows = query_smi("gpu", "index", "name", "memory.total", "memory.used")
    except SmiError:
        return []
    memories = []
    for row in rows:
        total, used = parse_mebibytes(row["memory.total"]), parse_mebibytes(row["memory.used"])
        if total is not None and used is not None:  # unknown if it is shared with the CPU
            name = f"GPU {row['index']} ({row['name']})"
            memories.append(GpuMemory(name, total, total - used))
    return memories


def _memory_by_torch() -> list[GpuMemory]:
    memories = []
    for name in available_devices()[:-1]:
        device = torch.device(name)
        if has_streams(device):
            free, total = module_of(device).mem_get_info(name)
            memories.append(GpuMemory(name, int(total), int(free)))
    return memories


def _gpu_processes() -> list[dict[str, str | int]]:
    """Return other processes that use memory of a GPU, the largest first."""
    try:
        rows = query_smi("compute-apps", "pid", "process_name", "used_memory")
    except SmiError:
        return []
    processes: list[dict[str, str | int]] = [
        {
            "pid": int(row["pid"]),
            "name": row["process_name"].rpartition("/")[2],
            "bytes": parse_mebibytes(row["used_memory"]) or 0,
        }
        for row in rows
        if row["pid"].isdecimal() and int(row["pid"]) != os.getpid()
    ]
    return sorted(processes, key=lambda process: -int(process["bytes"]))


def _describe_processes(processes: list[dict[str, str | int]]) -> str:
    if not processes:
        return (
            " The driver lists no processes that use the rest; it may be the screen or another "
            "container."
        )
    texts = [
        f"{process['name']} (process {process['pid']}) uses {gib(int(process['bytes']))}"
        for process in processes[:_MAX_NAMED_PROCESSES]
    ]
    return f" {', '.join(texts)}."
