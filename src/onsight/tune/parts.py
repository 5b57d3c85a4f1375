"""Divides batches into parts on a CPU, so that a training step takes a limited amount of memory.

How many follows from the network, the size of its input and the batch. Another number of parts may
change the last bits of weights, so neither a clock nor the number of cores may count; free memory
does only if there is too little.
"""

import math

import torch
from torch import Tensor, nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.models.head import set_training_mode
from onsight.text import data_size
from onsight.tune.training_data import TrainingData

# What a part may keep from its forward pass for its backward pass. A process that makes steps of
# EfficientNet-Lite0 at 224 pixels then peaks at 1.8 GB (NOTEBOOK.md).
STEP_BYTES = 700_000_000


def choose_parts(
    net: nn.Module, config: Config, data: TrainingData, ranks: int, free_bytes: float
) -> tuple[Choice[int] | None, bool]:
    """Return into how many parts batches are divided, and whether memory forced more than usual.

    None if this is not the place to say: if the user has, on an accelerator, where running out of
    memory is an error to recover from, and with batch norm in training, which would see other
    statistics.

    Args:
        net: The network with its first weights, which are not changed.
    """
    if config.accumulate or data.device.type != "cpu":
        return None, False
    set_training_mode(net, config.norm_statistics == "frozen")
    if any(part.training for part in net.modules() if hasattr(part, "running_mean")):
        return None, False
    images = math.ceil(min(config.batch_size, len(data.dataset.ids(TRAIN))) / ranks)
    each = count_saved_bytes(net, torch.zeros(2, *data.dataset.input_shape)) // 2
    usual, parts = (_divide(images, each, limit) for limit in (STEP_BYTES, free_bytes / 2))
    needs = f"for its backward pass, a whole batch keeps {data_size(each * images)}"
    if parts > usual:
        limit = f"half of the {data_size(int(free_bytes))} that are free"
        return Choice(parts, f"{needs}, which must not exceed {limit}", each), True
    limit = f"; a part may keep {data_size(STEP_BYTES)}"
    return Choice(usual, needs + (limit if usual > 1 else ""), each), False


def count_saved_bytes(net: nn.Module, inputs: Tensor) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, besides the weights.

    This is a count, not a measurement: it is the same whatever else the machine does.
    """
    own = {_address(tensor) for tensor in [*net.parameters(), *net.buffers()]}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if _address(tensor) not in own:
            kept[_address(tensor)] = tensor
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        net(inputs)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _divide(images: int, each: int, limit_bytes: float) -> int:
    """Return the smallest power of two of parts that stay below the limit, or are single images."""
    parts = 1
    while parts < images and math.ceil(images / parts) * each > limit_bytes:
        parts *= 2
    return min(parts, images)
