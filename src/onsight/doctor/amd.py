"""GPUs that AMD's driver knows, against a torch built for them."""

from pathlib import Path

import torch

from onsight.doctor.line import Line
from onsight.words import plural

_KFD = Path("/sys/class/kfd/kfd/topology/nodes")
_GET_STARTED = "https://pytorch.org/get-started/locally/"


def check_amd_gpus() -> Line | None:
    """Whether torch can use the GPUs that AMD's driver knows; None where it knows none."""
    found = _count_amd()
    if not found:
        return None
    named = plural(found, "AMD GPU")
    figures = {"gpus": found, "torch_rocm": torch.version.hip}
    if not torch.version.hip:
        return Line(
            "amd gpus",
            "warning",
            f"AMD's driver knows {named}, but this torch is not built for ROCm, so that it "
            "stays unused.",
            "If it is one that ROCm supports (most that are part of a processor are not), "
            f"choose ROCm at {_GET_STARTED} and type what is given there.",
            figures,
        )
    if not torch.cuda.is_available():
        return Line(
            "amd gpus",
            "problem",
            f"AMD's driver knows {named}, but torch for ROCm {torch.version.hip} sees none.",
            "You may lack the right to use it: join its groups, then log in anew.\n"
            "sudo usermod -aG render,video $USER",
            figures,
        )
    return Line("amd gpus", "ok", f"torch for ROCm {torch.version.hip} sees {named}.", "", figures)


def _count_amd() -> int:
    """AMD's GPUs: nodes of its topology with SIMD units, which those of processors lack."""
    found = 0
    for path in _KFD.glob("*/properties"):
        lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
        found += any(words[0] == "simd_count" and words[1] != "0" for words in lines if words)
    return found
