"""The NVIDIA driver and its GPUs, from nvidia-smi or from the kernel's files."""

import csv
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from onsight.errors import OnsightError

_PROC = Path("/proc/driver/nvidia")
_PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # vendor; prefix of the class of display and 3D controllers
_DEADLINE_SECONDS = 20.0  # without its persistence daemon, the driver loads for every call
_MIG_MODE = "mig.mode.current"
_UNKNOWN = "not a valid field"
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+)\.(\d+)")  # UMD since driver 610
# The CUDA that a driver of at least this version supports, where nvidia-smi does not say
# (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
_CUDA_OF_DRIVER = ((580, (13, 0)), (525, (12, 0)), (450, (11, 0)))

Version = tuple[int, int]


class SmiError(OnsightError):
    """The nvidia-smi command exists but failed; the message is its own."""


class NoSmi(SmiError):
    """There is no nvidia-smi command."""


class UnknownField(SmiError):
    """This version of nvidia-smi does not know one of the requested fields."""


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: its version, the newest CUDA it supports, its GPUs.

    capabilities: compute capabilities of the GPUs, where known; sliced: how many of them are in
    MIG mode; answers: whether nvidia-smi works; trouble: its message when it failed.
    """

    version: str
    cuda: Version | None
    gpus: list[str]
    capabilities: list[Version] = field(default_factory=list)
    sliced: int = 0
    answers: bool = False
    trouble: str = ""


def find_driver() -> Driver | None:
    """The NVIDIA driver of this machine, or None if there is none."""
    try:
        rows = _gpus_of_smi()
        banner = _run()
    except NoSmi:
        return _driver_of_proc("")
    except SmiError as error:
        return _driver_of_proc(str(error))
    if not rows:
        return None
    found = _CUDA.search(banner)
    version = rows[0]["driver_version"]
    return Driver(
        version=version,
        cuda=(int(found[1]), int(found[2])) if found else _cuda_of(version),
        gpus=[row["name"] for row in rows],
        capabilities=[one for row in rows if (one := _version(row.get("compute_cap", "")))],
        sliced=sum(row.get(_MIG_MODE) == "Enabled" for row in rows),
        answers=True,
    )


def count_on_bus() -> int:
    """The number of NVIDIA GPUs on the PCI bus, with or without a driver."""
    found = 0
    for device in _PCI.glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        found += vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return found


def ask(what: str, *fields: str) -> list[dict[str, str]]:
    """Query nvidia-smi: a row of fields for each gpu or compute-apps. Raises SmiError."""
    text = _run(f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits")
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def mebibytes(text: str) -> int | None:
    """Bytes, from a figure in MiB; None where nvidia-smi has none ([N/A])."""
    return int(text) << 20 if text.isdecimal() else None


def _run(*words: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *words],
            capture_output=True,
            text=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise NoSmi("there is no nvidia-smi command") from error
    except subprocess.TimeoutExpired as error:
        raise SmiError(f"no answer within {_DEADLINE_SECONDS:.0f} s") from error
    except OSError as error:
        raise SmiError(str(error)) from error
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).split("\n")
        said = next((line.strip() for line in lines if line.strip()), "no reason given")
        raise UnknownField(said) if _UNKNOWN in said else SmiError(said)
    return done.stdout


def _gpus_of_smi() -> list[dict[str, str]]:
    for newer in (("compute_cap", _MIG_MODE), ("compute_cap",)):
        with suppress(UnknownField):
            return ask("gpu", "name", "driver_version", *newer)
    return ask("gpu", "name", "driver_version")  # drivers from before 2021


def _driver_of_proc(trouble: str) -> Driver | None:
    """The driver by the files of its kernel module; None if none is loaded and nothing failed."""
    try:
        text = (_PROC / "version").read_text(encoding="utf-8")
    except OSError:
        return Driver("", None, [], trouble=trouble) if trouble else None
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)*)\b", text)
    version = found[1] if found else ""
    return Driver(version, _cuda_of(version), _gpus_of_proc(), trouble=trouble)


def _gpus_of_proc() -> list[str]:
    names = []
    for path in sorted(_PROC.glob("gpus/*/information")):
        found = re.search(r"^Model:\s*(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        names.append(found[1].strip() if found else path.parent.name)
    return names


def _cuda_of(version: str) -> Version | None:
    major = version.partition(".")[0]
    if not major.isdecimal():
        return None
    return next((cuda for least, cuda in _CUDA_OF_DRIVER if int(major) >= least), None)


def _version(text: str) -> Version | None:
    found = re.fullmatch(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None
