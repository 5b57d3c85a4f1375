"""Which build of torch fits a driver and its GPUs, and how to install it."""

import platform
from collections.abc import Iterable, Sequence

import torch

from onsight.doctor.smi import Version

_INDEX = "https://download.pytorch.org/whl"
# For releases of torch that do not list their builds: by CUDA version, the GPUs' capabilities.
_BUILDS = {"12.6": {50, 60, 70, 75, 80, 86, 90}, "13.0": {75, 80, 86, 90, 100, 120}}


def wheel_for(cuda: Version, capabilities: Iterable[Version]) -> str | None:
    """The build, in torch's own names (cu132), for a driver that supports CUDA up to a version.

    The newest build that the driver supports, or else one of the same major version, by CUDA's
    minor version compatibility. None if there is neither: then the driver must be updated.
    """
    wanted = list(capabilities)
    fitting = [
        version
        for version, built in _published().items()
        if version[0] <= cuda[0] and all(runs_on(built, one) for one in wanted)
    ]
    supported = [version for version in fitting if version <= cuda]
    if supported:
        return _tag(max(supported))
    return _tag(min(fitting)) if fitting else None


def runs_on(built: Iterable[int], capability: Version) -> bool:
    """Whether code for some capabilities (80 is 8.0) runs on a GPU: same major, minor not newer."""
    major, minor = capability
    return any(one // 10 == major and one % 10 <= minor for one in built)


def unsupported(arch_list: Sequence[str], capability: Version) -> bool:
    """Whether a torch built for these architectures (sm_80, compute_120) cannot use a GPU."""
    kernels = [_number(name) for name in arch_list if name.startswith("sm_")]
    portable = [_number(name) for name in arch_list if name.startswith("compute_")]
    newest = 10 * capability[0] + capability[1]
    return not (runs_on(kernels, capability) or any(one <= newest for one in portable))


def install_commands(build: str) -> str:
    """Commands to install a build such as cu132 or cpu; dependencies that fit are kept."""
    return (
        "pip uninstall -y torch torchvision\n"
        f"pip install torch torchvision --index-url {_INDEX}/{build}"
    )


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


def _tag(version: Version) -> str:
    return f"cu{version[0]}{version[1]}"


def _number(name: str) -> int:
    """80 of sm_80, 90 of sm_90a."""
    return int("".join(sign for sign in name.partition("_")[2] if sign.isdecimal()))
