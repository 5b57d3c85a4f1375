"""Training only the last layer: the backbone's weights and statistics stay as they are."""

from torch import nn

from onsight.errors import ModelError
from onsight.models.head import heads_of


def freeze_backbone(model: nn.Module) -> list[str]:
    """Make only the classifier trainable; return the names of its parameters.

    Call hold_frozen_norms after each model.train(). Raises ModelError if there is no classifier.
    """
    head = {id(parameter) for parameter in _head_parameters(model)}
    if not head:
        raise ModelError(
            f"{type(model).__name__} has no final linear layer to train while the rest is frozen"
        )
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in head)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def frozen_norms(model: nn.Module) -> list[nn.Module]:
    """The norms that must keep their running statistics when all but the head is frozen."""
    heads = heads_of(model)
    inside = {id(module) for head in heads for module in head.modules()}
    head_parameters = {id(parameter) for parameter in _head_parameters(model)}
    backbone = [one for one in model.parameters() if id(one) not in head_parameters]
    if not backbone or any(parameter.requires_grad for parameter in backbone):
        return []
    return [one for one in model.modules() if id(one) not in inside and _has_statistics(one)]


def hold_frozen_norms(model: nn.Module) -> None:
    """Put a frozen backbone's norms in evaluation mode; other models are left alone."""
    for norm in frozen_norms(model):
        norm.eval()


def _head_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for head in heads_of(model) for parameter in head.parameters()]


def _has_statistics(module: nn.Module) -> bool:
    return any(name.startswith("running_") for name in module._buffers)
