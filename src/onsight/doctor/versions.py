"""The versions of torch and its companions, and which build of torch fits a GPU's driver."""

import platform
import sys
from collections.abc import Iterable, Sequence

import torch

from onsight.doctor.line import Line
from onsight.doctor.smi import Version
from onsight.hardware.environment import version_of

_NEEDED = ("torchvision", "timm", "numpy", "pillow", "simplejpeg", "safetensors")
_SHOWN = ("torchvision", "timm")
_INDEX = "https://download.pytorch.org/whl"
# For releases of torch that do not list their builds: by CUDA version, the GPUs' capabilities.
_BUILDS = {"12.6": {50, 60, 70, 75, 80, 86, 90}, "13.0": {75, 80, 86, 90, 100, 120}}


def check_versions() -> Line:
    """Whether every library is installed, and torchvision fits torch."""
    versions = {name: version_of(name) for name in _NEEDED}
    figures = {"python": sys.version.split()[0], "torch": str(torch.__version__), **versions}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Line(
            "problem",
            f"Not installed: {', '.join(missing)}.",
            f"Install it:\npip install {' '.join(missing)}",
            figures,
        )
    said = f"Python {figures['python']}, torch {torch.__version__}, " + ", ".join(
        f"{name} {versions[name]}" for name in _SHOWN
    )
    misfit = _misfit_of_torchvision()
    if misfit:
        return Line(
            "problem",
            f"torchvision {versions['torchvision']} does not fit torch {torch.__version__}: "
            f"{misfit}",
            f"Install both together:\n{_reinstall()}",
            figures,
        )
    return Line("ok", f"{said}; torchvision fits torch.", "", figures)


def wheel_for(cuda: Version, capabilities: Iterable[Version]) -> str | None:
    """The build, in torch's own names (cu132), for a driver that supports CUDA up to a version.

    The newest build that the driver supports, or else one of the same major version, by CUDA's
    minor version compatibility. None if there is neither: then the driver must be updated.
    """
    wanted = list(capabilities)
    fitting = [
        version
        for version, built in _published().items()
        if version[0] <= cuda[0] and all(_runs_on(built, one) for one in wanted)
    ]
    supported = [version for version in fitting if version <= cuda]
    if supported:
        return _tag(max(supported))
    return _tag(min(fitting)) if fitting else None


def unsupported(arch_list: Sequence[str], capability: Version) -> bool:
    """Whether a torch built for these architectures (sm_80, compute_120) cannot use a GPU."""
    kernels = [_number(name) for name in arch_list if name.startswith("sm_")]
    portable = [_number(name) for name in arch_list if name.startswith("compute_")]
    newest = 10 * capability[0] + capability[1]
    return not (_runs_on(kernels, capability) or any(one <= newest for one in portable))


def install_commands(build: str) -> str:
    """Commands to install a build such as cu132 or cpu; dependencies that fit are kept."""
    return (
        "pip uninstall -y torch torchvision\n"
        f"pip install torch torchvision --index-url {_INDEX}/{build}"
    )


def _misfit_of_torchvision() -> str:
    """What goes wrong when torchvision's compiled code is run with this torch; empty if nothing."""
    try:
        from torchvision.ops import nms

        boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 2.0]])
        kept = nms(boxes, torch.tensor([0.5, 1.0]), 0.5)
    except Exception as error:  # a foreign build fails in many ways
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return "" if kept.tolist() == [1] else "its code gives wrong results."


def _reinstall() -> str:
    """The commands to reinstall the same build of torch, such as cu132."""
    build = torch.__version__.partition("+")[2]
    if build == "cpu" or build.startswith(("cu", "rocm", "xpu")):
        return install_commands(build)
    return "pip install --upgrade torch torchvision"


def _published() -> dict[Version, set[int]]:
    """The CUDA versions that this release of torch was built for, each with its capabilities."""
    machine = "aarch64" if platform.machine().lower() in ("aarch64", "arm64") else "x86_64"
    listed = getattr(torch.cuda, "PYTORCH_RELEASES_CODE_CC", _BUILDS)
    builds = {}
    for name, built in listed.items():
        major, _, minor = name.partition(".")
        of_machine = built.get(machine, ()) if isinstance(built, dict) else built
        builds[int(major), int(minor)] = set(of_machine)
    return builds


def _runs_on(built: Iterable[int], capability: Version) -> bool:
    """Whether code for some capabilities (80 is 8.0) runs on a GPU: same major, minor not newer."""
    major, minor = capability
    return any(one // 10 == major and one % 10 <= minor for one in built)


def _tag(version: Version) -> str:
    return f"cu{version[0]}{version[1]}"


def _number(name: str) -> int:
    """80 of sm_80, 90 of sm_90a."""
    return int("".join(sign for sign in name.partition("_")[2] if sign.isdecimal()))
