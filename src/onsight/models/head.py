"""The head of a network: its last linear layer, and what that layer is given."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from onsight.errors import ModelError


def heads_of(model: nn.Module) -> list[nn.Module]:
    """The classifiers that a timm model reports, else the last linear layer; may be empty."""
    get_classifier = getattr(model, "get_classifier", None)
    if callable(get_classifier):
        found = get_classifier()
        # Distilled nets have two heads, the second for the teacher.
        heads = list(found) if isinstance(found, (tuple, list)) else [found]
        heads = [head for head in heads if isinstance(head, nn.Module) and _has_parameters(head)]
        if heads:
            return heads
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [*linears[-1:]]


def linear_head(model: nn.Module) -> nn.Linear | None:
    """The one linear layer that turns features (B, D) into logits (B, K); None if it is not so."""
    heads = heads_of(model)
    return heads[0] if len(heads) == 1 and isinstance(heads[0], nn.Linear) else None


def required_head(model: nn.Module) -> nn.Linear:
    """The one linear layer that turns features into logits. Raises ModelError."""
    head = linear_head(model)
    if head is None:
        raise no_features(model)
    return head


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
    head = linear_head(model)
    if head is None or head.bias is None:
        raise ModelError(f"{type(model).__name__} does not end in a linear layer with a bias")
    head.weight.copy_(weight)
    head.bias.copy_(bias)


@contextmanager
def features_kept(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what the head is given, (B, D) of each forward pass within the block."""
    head = required_head(model)
    kept: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    try:
        yield kept
    finally:
        handle.remove()


def no_features(model: nn.Module) -> ModelError:
    """The error for a network whose pictures have no features."""
    return ModelError(
        f"{type(model).__name__} does not end in a linear layer that is given one row of numbers "
        "per picture, so it has no features to compare pictures by; the nets of `onsight models` "
        "whose last layer is linear do, such as compact and resnet18"
    )


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
