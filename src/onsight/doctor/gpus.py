"""The GPUs that the driver knows, those that torch can use, and why they differ."""

import os
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from onsight.doctor.line import Line, State
from onsight.doctor.smi import Driver, Version, count_on_bus, find_driver
from onsight.doctor.versions import install_commands, unsupported, wheel_for
from onsight.words import plural
from onsight_explain.devices import available_devices

_CONTROL = Path("/dev/nvidiactl")  # missing in a container started without GPUs
_HIDES = "CUDA_VISIBLE_DEVICES"
_DRIVER_PAGE = "https://www.nvidia.com/drivers"
_ON_PROCESSOR = "training runs on the CPU"
_TORCH_SAID_LENGTH = 200


@dataclass(frozen=True)
class Sight:
    """The GPUs of this machine as the NVIDIA driver and as torch see them.

    seen: torch's names, such as cuda:0. torch_said: torch's own warning, if there was one.
    """

    driver: Driver
    seen: list[str]
    torch_cuda: Version | None
    torch_said: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def gpus(self) -> str:
        """2 GPUs (NVIDIA A100, NVIDIA T4), in torch's names where the driver gives none."""
        kinds = Counter(self.driver.gpus or self.seen)
        names = [name if number == 1 else f"{number} {name}" for name, number in kinds.items()]
        return f"{plural(kinds.total(), 'GPU')} ({', '.join(names)})"

    @property
    def hidden(self) -> int:
        """How many of the driver's GPUs torch does not see."""
        return max(0, len(self.driver.gpus) - len(self.seen))

    def line(self, state: State, said: str, remedy: str = "") -> Line:
        """A line with the figures of what was seen."""
        return Line(state, said, remedy, self.figures)


def check_gpus() -> Line:
    """Whether torch can use every NVIDIA GPU of this machine, or another accelerator."""
    driver = find_driver()
    seen, torch_said = _seen_by_torch()
    if driver is None:
        return _without_driver(seen)
    cuda = [name for name in seen if name.startswith("cuda")]
    sight = Sight(driver, cuda, _torch_cuda(), torch_said, _figures(driver, seen))
    judged = (judge(sight) for judge in _JUDGES)
    return next(line for line in judged if line)


def _without_driver(seen: list[str]) -> Line:
    if seen:
        return Line("ok", f"torch can use {', '.join(seen)}.", "", {"seen": seen})
    on_bus = count_on_bus()
    if on_bus:
        return Line(
            "warning",
            f"The machine has {plural(on_bus, 'NVIDIA GPU')}, but no NVIDIA driver is loaded: "
            f"{_ON_PROCESSOR}.",
            f"To use it, install the driver ({_DRIVER_PAGE}) and restart the machine.",
            {"seen": seen, "gpus_on_bus": on_bus},
        )
    return Line(
        "note",
        f"There is no GPU that torch can use: {_ON_PROCESSOR}.",
        figures={"seen": seen},
    )


def _driver_answers(sight: Sight) -> Line | None:
    trouble = sight.driver.trouble
    if not trouble or sight.seen:
        return None
    if not count_on_bus():
        return sight.line(
            "note",
            f"NVIDIA's tools are installed, but there is no NVIDIA GPU ({trouble}): "
            f"{_ON_PROCESSOR}.",
        )
    remedy = "Install or repair the NVIDIA driver, then restart the machine."
    if "mismatch" in trouble:
        remedy = "The driver was updated while it was in use: restart the machine."
    return sight.line("problem", f"The NVIDIA driver does not answer: {trouble}", remedy)


def _driver_has_gpus(sight: Sight) -> Line | None:
    if sight.driver.gpus or sight.seen:
        return None
    return sight.line(
        "note",
        f"There is an NVIDIA driver ({sight.driver.version}), but no GPU: {_ON_PROCESSOR}.",
    )


def _torch_is_for_cuda(sight: Sight) -> Line | None:
    if sight.torch_cuda:
        return None
    kind = "built for ROCm" if torch.version.hip else "a CPU-only build"
    return sight.line(
        "problem",
        f"The machine has {sight.gpus}, but this torch ({torch.__version__}) is {kind}, "
        "which cannot use it.",
        _install(sight.driver),
    )


def _container_has_gpus(sight: Sight) -> Line | None:
    if sight.seen or sight.driver.answers or _CONTROL.exists():
        return None
    return sight.line(
        "problem",
        f"The machine has {sight.gpus}, but no program here can use it ({_CONTROL} is missing), "
        "as in a container started without GPUs.",
        "Start the container with GPUs; the host needs the NVIDIA Container Toolkit:\n"
        "docker run --gpus all ...",
    )


def _driver_is_new_enough(sight: Sight) -> Line | None:
    supported, needed = sight.driver.cuda, sight.torch_cuda
    if sight.seen or not supported or not needed or supported[0] >= needed[0]:
        return None
    return sight.line(
        "problem",
        f"The NVIDIA driver {sight.driver.version} supports CUDA up to {_words(supported)}, but "
        f"this torch is built for CUDA {_words(needed)}: {sight.gpus} cannot be used.",
        _install(
            sight.driver,
            sentence=f"Install a newer driver ({_DRIVER_PAGE}), or a torch built for this one:",
        ),
    )


def _none_is_sliced(sight: Sight) -> Line | None:
    """CUDA gives a program one slice, and no other GPU as soon as any is in MIG mode."""
    sliced = sight.driver.sliced
    if not sliced or (not sight.seen and os.environ.get(_HIDES) is not None):
        return None
    verb = "is" if sliced == 1 else "are"
    who = f"{sliced} of {sight.gpus} {verb} cut into slices (MIG mode)"
    if sight.seen:
        return sight.line(
            "note",
            f"{who}: a program gets one slice, with its share of memory and speed, and no other "
            "GPU.",
            "Each run can have a slice of its own, by its name from nvidia-smi -L; to use whole "
            "GPUs, their administrator can end MIG mode:\n"
            f"{_HIDES}=MIG-... onsight train ...\n"
            "sudo nvidia-smi -mig 0",
        )
    return sight.line(
        "problem",
        f"{who}, but torch sees no slice: {_ON_PROCESSOR}.",
        "Ask the administrator for a slice, or end MIG mode:\nsudo nvidia-smi -mig 0",
    )


def _none_is_hidden(sight: Sight) -> Line | None:
    hides = os.environ.get(_HIDES)
    if hides is None or not sight.hidden:
        return None
    return sight.line(
        "note" if sight.seen else "warning",
        f"{_HIDES}={hides!r} hides {sight.hidden} of {sight.gpus} from torch.",
        f"If that is not intended:\nunset {_HIDES}",
    )


def _torch_sees_all(sight: Sight) -> Line | None:
    if not sight.hidden:
        return None
    said = f" Torch's warning: {sight.torch_said}" if sight.torch_said else ""
    return sight.line(
        "problem",
        f"The driver finds {sight.gpus}, but torch sees {len(sight.seen) or 'none'}.{said}",
        f"Restart the machine. If that does not help, install the newest driver ({_DRIVER_PAGE}).",
    )


def _kernels_are_there(sight: Sight) -> Line | None:
    built = torch.cuda.get_arch_list()
    capabilities = _capabilities(sight)
    missing = [name for name, one in capabilities.items() if unsupported(built, one)]
    if not missing or not built:
        return None
    versions = ", ".join(_words(capabilities[name]) for name in missing)
    return sight.line(
        "problem",
        f"This torch has no code for {', '.join(missing)}, of compute capability {versions}; "
        f"it was built for {' '.join(built)}.",
        _install(sight.driver, [capabilities[name] for name in missing]),
    )


def _all_is_well(sight: Sight) -> Line:
    cudnn = sight.figures["cudnn"]
    return sight.line(
        "ok",
        f"torch can use {sight.gpus}: driver {sight.driver.version}"
        + (f" for CUDA up to {_words(sight.driver.cuda)}" if sight.driver.cuda else "")
        + (f", torch for CUDA {_words(sight.torch_cuda)}" if sight.torch_cuda else "")
        + (f" with cuDNN {cudnn}" if cudnn else "")
        + ".",
    )


_JUDGES: tuple[Callable[[Sight], Line | None], ...] = (
    _driver_answers,
    _driver_has_gpus,
    _torch_is_for_cuda,
    _container_has_gpus,
    _driver_is_new_enough,
    _kernels_are_there,
    _none_is_sliced,
    _none_is_hidden,
    _torch_sees_all,
    _all_is_well,
)


def _seen_by_torch() -> tuple[list[str], str]:
    """Torch's names of the accelerators, and the first line of its warning if there was one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names = available_devices()[:-1]
    said = str(caught[0].message).strip().partition("\n")[0] if caught else ""
    return names, said[:_TORCH_SAID_LENGTH]


def _capabilities(sight: Sight) -> dict[str, Version]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own about the same problem
        return {name: torch.cuda.get_device_capability(name) for name in sight.seen}


def _torch_cuda() -> Version | None:
    built = torch.version.cuda
    if not built:
        return None
    major, minor, *_ = built.split(".")
    return int(major), int(minor)


def _figures(driver: Driver, seen: list[str]) -> dict[str, Any]:
    return {
        "driver": driver.version,
        "driver_cuda": _words(driver.cuda) if driver.cuda else None,
        "torch_cuda": torch.version.cuda,
        "cudnn": _cudnn(),
        "gpus": driver.gpus,
        "in_mig_mode": driver.sliced,
        "seen": seen,
    }


def _cudnn() -> str | None:
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
    """How to install a torch that fits the driver; if there is none, what else to do."""
    build = driver.cuda and wheel_for(driver.cuda, capabilities or driver.capabilities)
    if build:
        return f"{sentence}\n{install_commands(build)}"
    return f"Install the newest NVIDIA driver ({_DRIVER_PAGE}), then: onsight doctor"


def _words(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
