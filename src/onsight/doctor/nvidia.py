"""The NVIDIA driver of this machine, and the builds of torch that work with it."""

import csv
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from onsight.errors import OnsightError

_PROC = Path("/proc/driver/nvidia")
_PCI = Path("/sys/bus/pci/devices")
_NVIDIA_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"  # the class is a prefix
_DEADLINE_SECONDS = 20.0  # without its persistence daemon, the driver loads for every call
_MIG_MODE = "mig.mode.current"
_UNKNOWN_FIELD = "not a valid field"
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)")  # UMD since driver 610
# The CUDA that a driver of at least this version supports, where nvidia-smi does not print it
# (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
_CUDA_OF_DRIVER = ((580, (13, 0)), (525, (12, 0)), (450, (11, 0)))

_WHEELS = "https://download.pytorch.org/whl"
# For releases of torch that do not list their builds: by CUDA version, the GPUs' capabilities.
_BUILDS = {"12.6": {50, 60, 70, 75, 80, 86, 90}, "13.0": {75, 80, 86, 90, 100, 120}}

Version = tuple[int, int]


class SmiError(OnsightError):
    """The nvidia-smi command failed; the message is its output if it printed any."""


class SmiMissing(SmiError):
    """There is no nvidia-smi command."""


class SmiFieldUnknown(SmiError):
    """This version of nvidia-smi lacks one of the requested fields."""


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver and its GPUs."""

    version: str
    cuda: Version | None  # newest CUDA version that the driver supports
    gpus: list[str]
    # Compute capabilities of the GPUs, where known.
    capabilities: list[Version] = field(default_factory=list)
    mig_gpus: int = 0  # GPUs in MIG mode
    has_smi: bool = False  # nvidia-smi works
    smi_error: str = ""  # message of an nvidia-smi that failed


def find_driver() -> Driver | None:
    """Return the NVIDIA driver of this machine, or None if there is none."""
    try:
        rows = _query_gpus()
        banner = _run_smi()
    except SmiMissing:
        return _read_driver("")
    except SmiError as error:
        return _read_driver(str(error))
    if not rows:
        return None
    cuda = _CUDA.search(banner)
    version = rows[0]["driver_version"]
    capabilities = [parse_version(row.get("compute_cap", "")) for row in rows]
    return Driver(
        version=version,
        cuda=parse_version(cuda[1]) if cuda else _cuda_of_driver(version),
        gpus=[row["name"] for row in rows],
        capabilities=[capability for capability in capabilities if capability],
        mig_gpus=sum(row.get(_MIG_MODE) == "Enabled" for row in rows),
        has_smi=True,
    )


def count_on_bus() -> int:
    """Return the number of NVIDIA GPUs on the PCI bus, with or without a driver."""
    count = 0
    for device in _PCI.glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        count += vendor == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS)
    return count


def query_smi(subject: str, *fields: str) -> list[dict[str, str]]:
    """Return a row of fields for each `gpu` or process (`compute-apps`). Raises SmiError."""
    text = _run_smi(f"--query-{subject}={','.join(fields)}", "--format=csv,noheader,nounits")
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def parse_mebibytes(text: str) -> int | None:
    """Convert nvidia-smi's MiB to bytes; return None if there is no number, such as [N/A]."""
    return int(text) << 20 if text.isdecimal() else None


def parse_version(text: str) -> Version | None:
    """Return the first two numbers of a version; None if there is none, such as [N/A]."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def find_build(cuda: Version, capabilities: Iterable[Version]) -> str | None:
    """Return the build of torch, such as cu132, for a driver that supports CUDA up to `cuda`.

    This is the newest build up to that version. If there is none, it is the oldest newer build of
    the same major version, which CUDA's minor version compatibility allows. None if neither exists
    for these GPUs: the driver must be updated.
    """
    required = list(capabilities)
    candidates = [
        version
        for version, built in _published_builds().items()
        if version[0] <= cuda[0] and all(_runs_on(built, gpu) for gpu in required)
    ]
    supported = [version for version in candidates if version <= cuda]
    build = max(supported, default=min(candidates, default=None))
    return f"cu{build[0]}{build[1]}" if build else None


def is_unsupported(arch_list: Sequence[str], capability: Version) -> bool:
    """Return whether torch built for these architectures (sm_80, compute_120) cannot use a GPU."""
    kernels, portable = (
        [int(re.sub(r"\D", "", name)) for name in arch_list if name.startswith(kind)]
        for kind in ("sm_", "compute_")
    )
    gpu = 10 * capability[0] + capability[1]
    return not (_runs_on(kernels, capability) or any(number <= gpu for number in portable))


def install_commands(build: str) -> str:
    """Return the commands to install a build such as cu132 or cpu.

    Dependencies that fit are kept.
    """
    return (
        "pip uninstall -y torch torchvision\n"
        f"pip install torch torchvision --index-url {_WHEELS}/{build}"
    )


def _run_smi(*words: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *words],
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise SmiMissing("there is no nvidia-smi command") from error
    except subprocess.TimeoutExpired as error:
        raise SmiError(f"no answer within {_DEADLINE_SECONDS:.0f} s") from error
    except OSError as error:
        raise SmiError(str(error)) from error
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).split("\n")
        reason = next((line.strip() for line in lines if line.strip()), "no reason given")
        raise SmiFieldUnknown(reason) if _UNKNOWN_FIELD in reason else SmiError(reason)
    return done.stdout


def _query_gpus() -> list[dict[str, str]]:
    for newer in (("compute_cap", _MIG_MODE), ("compute_cap",)):
        with suppress(SmiFieldUnknown):
            return query_smi("gpu", "name", "driver_version", *newer)
    return query_smi("gpu", "name", "driver_version")  # drivers from before 2021


def _read_driver(smi_error: str) -> Driver | None:
    """Read the driver from the files of its kernel module.

    Return None if no module is loaded, unless there is an error of nvidia-smi to report.
    """
    try:
        text = (_PROC / "version").read_text(encoding="utf-8")
    except OSError:
        return Driver("", None, [], smi_error=smi_error) if smi_error else None
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)*)\b", text)
    version = match[1] if match else ""
    return Driver(version, _cuda_of_driver(version), _read_gpu_names(), smi_error=smi_error)


def _read_gpu_names() -> list[str]:
    names = []
    for path in sorted(_PROC.glob("gpus/*/information")):
        match = re.search(r"^Model:\s*(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        names.append(match[1].strip() if match else path.parent.name)
    return names


def _cuda_of_driver(version: str) -> Version | None:
    major = version.partition(".")[0]
    if not major.isdecimal():
        return None
    return next((cuda for minimum, cuda in _CUDA_OF_DRIVER if int(major) >= minimum), None)


def _published_builds() -> dict[Version, set[int]]:
    """Return the CUDA versions of this torch release's builds, with their compute capabilities."""
    machine = "aarch64" if platform.machine().lower() in ("aarch64", "arm64") else "x86_64"
    listed = getattr(torch.cuda, "PYTORCH_RELEASES_CODE_CC", _BUILDS)
    builds = {}
    for name, built in listed.items():
        major, _, minor = name.partition(".")
        capabilities = built.get(machine, ()) if isinstance(built, dict) else built
        builds[int(major), int(minor)] = set(capabilities)
    return builds


def _runs_on(built: Iterable[int], capability: Version) -> bool:
    """Return whether a build with these compute capabilities (80 means 8.0) runs on a GPU.

    One of them must have the GPU's major version, and a minor version that is not newer.
    """
    major, minor = capability
    return any(number // 10 == major and number % 10 <= minor for number in built)
