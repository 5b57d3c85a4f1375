"""Finds and replaces the head of a network, captures its input, and freezes the backbone.

The head is the last linear layer, or two with a hidden layer between them.

B batch, D features, K classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from threading import get_ident

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.models.intermediate import IntermediateNet, compute_layers
from onsight.models.trial_forward import preserving_modes
from onsight.models.unsuitable import unsuitable_error


class HiddenHead(nn.Module):
    """A head with one hidden layer, which maps features (B, D) to logits (B, K)."""

    def __init__(self, in_features: int, units: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.first = nn.Linear(in_features, units)
        self.last = nn.Linear(units, out_features)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, K) of features (B, D)."""
        logits: Tensor = self.last(F.gelu(self.first(features)))
        return logits


Head = nn.Linear | HiddenHead


def find_heads(model: nn.Module) -> list[nn.Module]:
    """Return timm's classifiers, or else a HiddenHead, or else the last nn.Linear, if any.

    Distilled networks have two heads, the second for the teacher.
    """
    get_classifier = getattr(model, "get_classifier", None)
    if callable(get_classifier):
        reported = get_classifier()
        heads = list(reported) if isinstance(reported, (tuple, list)) else [reported]
        heads = [head for head in heads if isinstance(head, nn.Module) and _has_parameters(head)]
        if heads:
            return heads
    hidden = [module for module in model.modules() if isinstance(module, HiddenHead)]
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [*(hidden or linears)[-1:]]


def find_head(model: nn.Module) -> Head | None:
    """Return the layer that maps features (B, D) to logits (B, K), or None.

    It is None as well if there are several such layers, or if it is not linear.
    """
    heads = find_heads(model)
    return heads[0] if len(heads) == 1 and isinstance(heads[0], Head) else None


def require_head(model: nn.Module) -> Head:
    """Return the layer that maps features to logits.

    Raises:
        ModelError: If `find_head` finds none.
    """
    head = find_head(model)
    if head is None:
        raise no_feature_error(model)
    return head


def hidden_units(model: nn.Module) -> int:
    """Return the units of the hidden layer in the model's head, or 0 if it has none."""
    head = find_head(model)
    return head.first.out_features if isinstance(head, HiddenHead) else 0


def add_hidden_layer(model: nn.Module, units: int) -> None:
    """Replace the linear head with a new head that has a hidden layer. Raises ModelError."""
    head = _require_replaceable_head(model)
    set_hidden_head(model, HiddenHead(head.in_features, units, head.out_features))


def set_hidden_head(model: nn.Module, head: HiddenHead) -> None:
    """Replace the model's head with a copy of a head that has a hidden layer. Raises ModelError."""
    old = _require_replaceable_head(model)
    name = next(name for name, module in model.named_modules() if module is old)
    # The original stays where the features are that it was fitted on.
    model.set_submodule(name, deepcopy(head).to(next(old.parameters()).device))


@torch.no_grad()
def set_linear_head(model: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Copy a fitted head into the model.

    Args:
        weight: (K, D).
        bias: (K,).

    Raises:
        ModelError: If the model's head is not linear or has no bias.
    """
    head = find_head(model)
    if not isinstance(head, nn.Linear) or head.bias is None:
        raise unsuitable_error(
            model, "a fitted head", "it does not end in a linear layer that has a bias"
        )
    head.weight.copy_(weight)
    head.bias.copy_(bias)


def use_intermediate_layers(net: nn.Module, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Give a network of timm a head on its last and intermediate layers.

    Args:
        shape: The shape (C, H, W) of an image.

    Returns:
        The network with the new head, whose weights are zero; or the network itself if timm does
        not give access to its intermediate layers.
    """
    head = find_head(net)
    if not isinstance(head, nn.Linear) or head.bias is None or not _has_intermediate_layers(net):
        return net
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    images = images.to(head.weight.device)
    with preserving_modes(net), torch.no_grad():
        net.eval()
        try:
            with capturing_features(net) as captured:
                net(images)
            layers = compute_layers(net, images)
        except (RuntimeError, TypeError, ValueError, AssertionError):  # not for this architecture
            return net
    last = layers[0]
    if captured[0].shape != last.shape or not torch.allclose(
        captured[0], last, rtol=1e-3, atol=1e-3
    ):
        return net  # the architecture computes them in another way
    sizes = [layer.shape[1] for layer in layers]
    return IntermediateNet(net, sizes[0], sum(sizes), classes)


def start_head_at_zero(net: nn.Module) -> None:
    """Set the last layer of each head to zero, so that the first loss is ln K.

    The gradients of a random head would damage pretrained features.
    """
    for head in find_heads(net):
        layers = [layer for layer in head.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
        if layers:
            for parameter in layers[-1].parameters():
                nn.init.zeros_(parameter)


def feature_layer(model: nn.Module) -> nn.Module:
    """Return the layer that receives the features (B, D) of the last layer: usually the head.

    A head on several layers also receives those of others.

    Raises:
        ModelError: If there is none.
    """
    return model.last_layer if isinstance(model, IntermediateNet) else require_head(model)


def feature_size(model: nn.Module) -> int:
    """Return the number D of features of the last layer. Raises ModelError if there are none."""
    if isinstance(model, IntermediateNet):
        return model.last_features
    return require_head(model).in_features


@contextmanager
def capturing_features(model: nn.Module, layer: nn.Module | None = None) -> Iterator[list[Tensor]]:
    """Collect the features (B, D) in each forward pass of this thread within a block.

    Args:
        layer: The layer whose input is collected, by default the `feature_layer`.
    """
    layer = layer or feature_layer(model)
    captured: list[Tensor] = []
    thread = get_ident()

    def capture(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if get_ident() == thread:
            captured.append(inputs[0])

    handle = layer.register_forward_pre_hook(capture)
    try:
        yield captured
    finally:
        handle.remove()


def no_feature_error(model: nn.Module) -> ModelError:
    """Return the error to raise for a network that does not compute features."""
    return unsuitable_error(
        model,
        "comparing images by features",
        "it does not end in a linear layer that receives one row of numbers per image",
        "Use a model whose last layer is linear, such as compact or resnet18",
    )


def freeze_backbone(model: nn.Module) -> list[str]:
    """Freeze all parameters except those of the head.

    Use `set_training_mode` for training, which keeps the backbone in evaluation mode.

    Returns:
        The names of the head's parameters.

    Raises:
        ModelError: If there is no head.
    """
    head = {id(parameter) for parameter in _head_parameters(model)}
    if not head:
        raise unsuitable_error(
            model, "training with a frozen backbone", "it has no final linear layer to train"
        )
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in head)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def set_training_mode(model: nn.Module, keep_statistics: bool = False) -> None:
    """Put a model in training mode, except a frozen backbone, which stays in evaluation mode.

    Args:
        keep_statistics: Keep norm layers with running statistics in evaluation mode, which suits
            fine-tuning with few or small batches.
    """
    model.train()
    if _is_backbone_frozen(model):
        heads = {id(part) for head in find_heads(model) for part in head.modules()}
        for part in model.modules():
            if id(part) not in heads:
                part.training = False  # eval() would include the head, if it is inside
    elif keep_statistics:
        for part in model.modules():
            if any(name.startswith("running_") for name in part._buffers):
                part.eval()


def _require_replaceable_head(model: nn.Module) -> Head:
    head = find_head(model)
    if head is None or head is model:
        raise unsuitable_error(
            model,
            "training a head with a hidden layer",
            "it has no single linear layer after a backbone to replace",
        )
    return head


def _is_backbone_frozen(model: nn.Module) -> bool:
    head = {id(parameter) for parameter in _head_parameters(model)}
    backbone = [parameter for parameter in model.parameters() if id(parameter) not in head]
    return bool(backbone) and not any(parameter.requires_grad for parameter in backbone)


def _head_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for head in find_heads(model) for parameter in head.parameters()]


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _has_intermediate_layers(net: nn.Module) -> bool:
    methods = ("forward_intermediates", "forward_head", "reset_classifier")
    return all(callable(getattr(net, name, None)) for name in methods)
