"""What a model costs: parameters, and multiply-adds for one image, counted without computing."""

from dataclasses import dataclass

import torch

from onsight.models.catalog import make_model, own_names, preferred_size
from onsight.models.timm_nets import timm_facts

_OWN_CLASSES = 10
_OWN_SIZE = (32, 32)  # for nets that take any size


@dataclass(frozen=True)
class ModelCost:
    """A model at the (height, width) it was made for, colour, with its published head.

    parameters and multiply_adds are None for a model that cannot be counted.
    """

    size: tuple[int, int] | None
    parameters: int | None = None
    multiply_adds: int | None = None


def model_cost(name: str) -> ModelCost:
    """Count a model of Onsight's or timm's on torch's meta device, where nothing is computed.

    Onsight's own have 10 classes, and 32x32 pixels where they take any. Raises ModelError.
    """
    shape, classes = _published_shape(name)
    if shape is None:
        return ModelCost(None)
    size = shape[1:]
    try:
        return ModelCost(size, *_count(name, shape, classes))
    except Exception:  # some of timm's nets cannot be made without memory
        return ModelCost(size)


def _published_shape(name: str) -> tuple[tuple[int, int, int] | None, int]:
    if name in own_names():
        return (3, *(preferred_size(name) or _OWN_SIZE)), _OWN_CLASSES
    facts = timm_facts(name)
    if facts is None:
        return None, 0
    channels, height, width = facts.input_size
    return (channels, height, width), facts.num_classes


def _count(name: str, shape: tuple[int, int, int], classes: int) -> tuple[int, int]:
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), torch.no_grad():
        net = _make(name, shape, classes)
        with FlopCounterMode(display=False) as counter:
            net.eval()(torch.empty(1, *shape))
    parameters = sum(parameter.numel() for parameter in net.parameters())
    return parameters, counter.get_total_flops() // 2  # a multiply-add is counted as two


def _make(name: str, shape: tuple[int, int, int], classes: int) -> torch.nn.Module:
    if name in own_names():
        with torch.device("cpu"):  # their trial forward needs real images
            return make_model(name, shape, classes).to("meta")
    import timm

    net: torch.nn.Module = timm.create_model(name, num_classes=classes)
    return net
