"""Whether pretrained weights are available offline."""

from onsight.doctor.line import Line
from onsight.models.pretrained import offline_hint, offline_models
from onsight.words import listed


def check_pretrained() -> Line:
    """Whether the packages that hold ImageNet weights are installed."""
    there = offline_models()
    if there:
        use = f"--model {there[0]} --pretrained"
        said = f"ImageNet weights of {listed(there)} are installed, for use offline: {use}."
    else:
        said = "No pretrained weights are installed; timm's come from the Hugging Face Hub."
    hint = offline_hint()
    remedy = f"For use offline, {hint}." if hint else ""
    return Line("note", said, remedy, {"offline": bool(there), "models": there})
