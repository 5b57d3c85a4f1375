"""Facts about models for `onsight models`: names, sources of weights and costs.

C channels, H height, W width.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from onsight.errors import ModelError, did_you_mean
from onsight.models.catalog import builtin_names, make_model, model_names, preferred_size
from onsight.models.timm_nets import has_offline_weights, is_cached, offline_models, timm_facts

# Models with a good accuracy for their cost on a CPU or a single GPU, smallest first.
_RECOMMENDED = (
    "mobilenetv4_conv_small",
    "mobilenetv3_large_100",
    "resnet10t",
    "tf_efficientnet_lite0",
    "tf_efficientnet_lite1",
    "tf_efficientnet_lite2",
    "efficientnet_b0",
    "convnext_atto",
    "vit_tiny_patch16_224",
    "regnety_016",
    "resnet18",
    "tiny_vit_11m_224",
    "resnet50",
    "vit_small_patch16_224",
    "convnext_tiny",
)
# Classes, and input size if it is arbitrary, with which the cost of built-in networks is counted.
_BUILTIN_CLASSES = 10
_BUILTIN_SIZE = (32, 32)


@dataclass(frozen=True)
class ModelCost:
    """The cost of a model for colour images, with its published head."""

    size: tuple[int, int] | None  # (height, width) it was designed for, if known
    parameters: int | None = None  # number of parameters, None if the model cannot be counted
    multiply_adds: int | None = None  # multiply-adds per image, None if the model cannot be counted


def recommended_models() -> list[str]:
    """Return built-in models, models with offline weights, and recommended timm models."""
    return list(dict.fromkeys([*builtin_names(), *offline_models(), *_RECOMMENDED]))


def find_models(pattern: str) -> list[str]:
    """Return the models whose names contain a text, or match a pattern with * or ?.

    Raises:
        ModelError: If there are none.
    """
    is_glob = any(sign in pattern for sign in "*?")
    names = model_names()
    matches = [name for name in names if fnmatchcase(name, pattern if is_glob else f"*{pattern}*")]
    if not matches:
        raise ModelError(f"no model matches '{pattern}'.{did_you_mean(pattern, names)}")
    return matches


def locate_weights(name: str) -> str:
    """Return where a model's published weights are: "here", on the "Hub", or "none"."""
    if name in builtin_names():
        return "none"
    facts = timm_facts(name)
    if has_offline_weights(name):
        return "here"
    if facts is None or not facts.has_weights:
        return "none"
    return "here" if facts.hf_hub_id and is_cached(facts.hf_hub_id) else "Hub"


def count_cost(name: str) -> ModelCost:
    """Count a model's parameters and multiply-adds on torch's meta device.

    Built-in models are counted with 10 classes, and with 32x32 pixels if they accept any size.

    Raises:
        ModelError: If there is no such model.
    """
    shape, classes = _published_shape(name)
    if shape is None:
        return ModelCost(None)
    size = shape[1:]
    try:
        return ModelCost(size, *_count(name, shape, classes))
    except Exception:  # some of timm's networks cannot be made on the meta device
        return ModelCost(size)


def _published_shape(name: str) -> tuple[tuple[int, int, int] | None, int]:
    if name in builtin_names():
        return (3, *(preferred_size(name) or _BUILTIN_SIZE)), _BUILTIN_CLASSES
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
    if name in builtin_names():
        with torch.device("cpu"):  # the trial forward pass needs real images
            return make_model(name, shape, classes).to("meta")
    import timm

    net: torch.nn.Module = timm.create_model(name, num_classes=classes)
    return net
