"""Parts of a network that training leaves as they are: a frozen backbone, norms' statistics."""

from torch import nn

from onsight.errors import ModelError
from onsight.models.head import heads_of


def freeze_backbone(model: nn.Module) -> list[str]:
    """Make only the classifier trainable; return the names of its parameters.

    Then train it in `set_training_mode`. Raises ModelError if there is no classifier.
    """
    head = {id(parameter) for parameter in _head_parameters(model)}
    if not head:
        raise ModelError(
            f"{type(model).__name__} has no final linear layer to train while the rest is frozen"
        )
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in head)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def set_training_mode(model: nn.Module, keep_statistics: bool = False) -> None:
    """Put a model in training mode, but a frozen backbone in evaluation mode.

    keep_statistics: norms go on normalising with the statistics they have, as when fine-tuning
    published weights with few or small batches.
    """
    model.train()
    if _is_frozen(model):
        heads = {id(part) for head in heads_of(model) for part in head.modules()}
        for part in model.modules():
            if id(part) not in heads:
                part.training = False  # not eval(), which would reach the head inside
    elif keep_statistics:
        for part in model.modules():
            if _has_statistics(part):
                part.eval()


def _is_frozen(model: nn.Module) -> bool:
    head = {id(parameter) for parameter in _head_parameters(model)}
    backbone = [parameter for parameter in model.parameters() if id(parameter) not in head]
    return bool(backbone) and not any(parameter.requires_grad for parameter in backbone)


def _head_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for head in heads_of(model) for parameter in head.parameters()]


def _has_statistics(module: nn.Module) -> bool:
    return any(name.startswith("running_") for name in module._buffers)
