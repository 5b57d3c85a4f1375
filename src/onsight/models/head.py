"""The head of a network: its last linear layer or two, and what those are given."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.errors import ModelError


class HiddenHead(nn.Module):
    """A head with one hidden layer, in place of a linear one: features (B, D) to logits (B, K)."""

    def __init__(self, in_features: int, units: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.first = nn.Linear(in_features, units)
        self.last = nn.Linear(units, out_features)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B, K) of features (B, D)."""
        logits: Tensor = self.last(F.gelu(self.first(features)))
        return logits


Head = nn.Linear | HiddenHead


def heads_of(model: nn.Module) -> list[nn.Module]:
    """The classifiers that a timm model reports, else the head or the last linear layer.

    May be empty.
    """
    get_classifier = getattr(model, "get_classifier", None)
    if callable(get_classifier):
        found = get_classifier()
        # Distilled nets have two heads, the second for the teacher.
        heads = list(found) if isinstance(found, (tuple, list)) else [found]
        heads = [head for head in heads if isinstance(head, nn.Module) and _has_parameters(head)]
        if heads:
            return heads
    own = [module for module in model.modules() if isinstance(module, HiddenHead)]
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [*(own or linears)[-1:]]


def head_of(model: nn.Module) -> Head | None:
    """The one layer that turns features (B, D) into logits (B, K); None if it is not so."""
    heads = heads_of(model)
    return heads[0] if len(heads) == 1 and isinstance(heads[0], Head) else None


def required_head(model: nn.Module) -> Head:
    """The one layer that turns features into logits. Raises ModelError."""
    head = head_of(model)
    if head is None:
        raise no_features(model)
    return head


def hidden_units(model: nn.Module) -> int:
    """Units of the hidden layer in the model's head, 0 if it has none."""
    head = head_of(model)
    return head.first.out_features if isinstance(head, HiddenHead) else 0


def add_hidden_layer(model: nn.Module, units: int) -> None:
    """Put a new head with a hidden layer in the place of the linear one. Raises ModelError."""
    head = required_head(model)
    set_hidden_head(model, HiddenHead(head.in_features, units, head.out_features))


def set_hidden_head(model: nn.Module, head: HiddenHead) -> None:
    """Put a head with a hidden layer in the place of the model's own. Raises ModelError."""
    old = required_head(model)
    name = next(name for name, module in model.named_modules() if module is old)
    if not name:
        raise no_features(model)  # a network that is nothing but its head
    model.set_submodule(name, head.to(next(old.parameters()).device))


def start_head_at_zero(net: nn.Module) -> None:
    """Set the last layer of each head to zero, so that the first loss is ln K for K classes.

    Whatever a random head says about good features is noise, and its gradient spoils them.
    """
    for head in heads_of(net):
        layers = [one for one in head.modules() if isinstance(one, (nn.Linear, nn.Conv2d))]
        for parameter in (parameter for layer in layers[-1:] for parameter in layer.parameters()):
            nn.init.zeros_(parameter)


@torch.no_grad()
def set_linear_head(model: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Put a fitted head in place. weight: (K, D); bias: (K,). Raises ModelError."""
    head = head_of(model)
    if not isinstance(head, nn.Linear) or head.bias is None:
        raise ModelError(f"{type(model).__name__} does not end in a linear layer with a bias")
    head.weight.copy_(weight)
    head.bias.copy_(bias)


@contextmanager
def features_kept(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what the head is given, (B, D) of each forward pass of this thread in the block."""
    head = required_head(model)
    kept: list[Tensor] = []
    thread = get_ident()

    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        if get_ident() == thread:
            kept.append(given[0])

    handle = head.register_forward_pre_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


def no_features(model: nn.Module) -> ModelError:
    """The error for a network whose images have no features."""
    return ModelError(
        f"{type(model).__name__} does not end in a linear layer that is given one row of numbers "
        "per image, so it has no features to compare images by; the nets of `onsight models` "
        "whose last layer is linear do, such as compact and resnet18"
    )


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
