"""The versions of Python, torch and its companions, and whether they fit together."""

import sys

import torch

from onsight.doctor.line import Line
from onsight.doctor.wheels import install_commands
from onsight.hardware.environment import version_of

_NEEDED = ("torchvision", "timm", "numpy", "pillow", "simplejpeg", "safetensors")
_SHOWN = ("torchvision", "timm")


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
