"""AMD GPUs: those that the driver knows, and whether this torch can use them."""

from pathlib import Path

import torch

from onsight.doctor.line import Line
from onsight.words import plural

_KFD = Path("/sys/class/kfd/kfd/topology/nodes")
_GET_STARTED = "https://pytorch.org/get-started/locally/"


def check_amd_gpus() -> Line | None:
    """Whether torch can use the AMD GPUs of this machine; None if there are none."""
    found = _count_amd()
    if not found:
        return None
    named = plural(found, "AMD GPU")
    figures = {"gpus": found, "torch_rocm": torch.version.hip}
    if not torch.version.hip:
        return Line(
            "warning",
            f"AMD's driver finds {named}, but this torch is not built for ROCm and cannot use it.",
            "If ROCm supports it (it does not support most integrated GPUs), choose ROCm at "
            f"{_GET_STARTED} and run the command shown there.",
            figures,
        )
    if not torch.cuda.is_available():
        return Line(
            "problem",
            f"AMD's driver finds {named}, but torch for ROCm {torch.version.hip} sees none.",
            "You may lack permission to use it: join these groups, then log in again.\n"
            "sudo usermod -aG render,video $USER",
            figures,
        )
    return Line("ok", f"torch for ROCm {torch.version.hip} sees {named}.", "", figures)


def _count_amd() -> int:
    """The number of AMD GPUs: topology nodes with SIMD units, which CPU nodes do not have."""
    found = 0
    for path in _KFD.glob("*/properties"):
        lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
        found += any(words[0] == "simd_count" and words[1] != "0" for words in lines if words)
    return found
