"""Chooses the size of a network's input, by the size of the images and the time."""

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from pydantic import Field

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.sizes import SAME_SIZE, choose_size, find_common_size
from onsight.data.sources.source import Source
from onsight.models.catalog import builtin_names, preferred_size, scalable_side
from onsight.models.compact import MIN_SIDE
from onsight.models.timm_nets import has_offline_weights
from onsight.tune.work import (
    MAX_HEAD_SHARE,
    MIN_TUNED_EPOCHS,
    UNIT_SIDE,
    Work,
    describe_work,
    measure_side,
)

Side = Annotated[int, Field(ge=1, lt=100_000)]  # pixels
Size = tuple[Side, Side]  # (height, width)

LARGEST_SIDE, _SMALLEST_SIDE, _SIDE_STEP = 224, 64, 32  # pixels, of a pretrained network's input
# Larger than that, for a head of large images: 1.3 points more on clip art (NOTEBOOK.md).
LARGER_SIZES = ((288, 288), (256, 256))
_SMALLEST_UNKNOWN_SIDE = 96  # some networks of timm refuse less
_SCRATCH_SIDES = (128, 64)  # pixels; 96 would take twice as long as 128 (models/compact.py)
_SHARED_FRACTION = 0.9  # of the images, that lose no detail if the input does not ask for it
_MIN_SCRATCH_EPOCHS = 15  # for the larger of them
_NOTHING_NEW = "a larger one would be more than twice the side of the median image"
_SCRATCH_NAMES = ("sprint", "compact")


def choose_input_size(source: Source, config: Config, device: torch.device) -> Choice[Size]:
    """Choose the input size of the network that the user has named."""
    preferred = preferred_size(config.model, config.weights, config.member)
    is_scalable = _find_scalable_side(config) is not None
    is_small = config.model in _SCRATCH_NAMES and not preferred
    if config.size or not (is_scalable or is_small):
        return choose_size(source, config.size, preferred)
    work = describe_work(source, config, device)
    if is_small:
        size = choose_scratch_size(work, config.model, work.seconds)
        is_own = size == work.own_size
        return Choice(size, SAME_SIZE if is_own else "the largest with time for enough epochs")
    sizes = _list_sizes(config, work)
    seconds_at = work.head_seconds if config.freeze else work.tuned_seconds
    share = MAX_HEAD_SHARE if config.freeze else 1.0
    size = find_fitting(sizes, seconds_at, share * work.seconds) or sizes[-1]
    if size != sizes[0]:
        return Choice(size, "the largest that there is time for")
    return Choice(size, "the size the model was made for" if size == preferred else _NOTHING_NEW)


def choose_freezing(source: Source, config: Config, device: torch.device) -> Choice[bool]:
    """Choose whether to keep a pretrained network as it is, because fine-tuning takes too long."""
    work = describe_work(source, config, device)
    preferred = preferred_size(config.model, config.weights, config.member)
    sizes = [config.size] if config.size else _list_sizes(config, work)
    size = sizes[-1] if sizes else choose_size(source, None, preferred).value
    if config.model in builtin_names():  # which are all small
        epochs = work.seconds / work.scratch_seconds("compact", size, 1)
    else:
        epochs = work.seconds / work.tuned_seconds(size, 1)
    reason = f"there is time for about {epochs:.1f} epochs of fine-tuning at {size[0]}x{size[1]}"
    if epochs < MIN_TUNED_EPOCHS:
        return Choice(True, f"{reason}, of at least {MIN_TUNED_EPOCHS}", epochs)
    return Choice(False, reason, epochs)


def _find_scalable_side(config: Config) -> int | None:
    """Return the side that published weights were trained at, if they can be used at others."""
    return scalable_side(config.model) if config.pretrained and not config.weights else None


def _list_sizes(config: Config, work: Work) -> list[Size]:
    """List the inputs that published weights can use; none if there is one size only."""
    largest = _find_scalable_side(config)
    if not largest:
        return []
    smallest = _SMALLEST_SIDE if has_offline_weights(config.model) else _SMALLEST_UNKNOWN_SIDE
    return list_pretrained_sizes(work.side, largest, smallest)


def list_pretrained_sizes(
    side: int, largest: int = LARGEST_SIDE, smallest: int = _SMALLEST_SIDE
) -> list[Size]:
    """List the inputs that suit a pretrained network, from the largest.

    Args:
        side: The side of the median image: more than twice as large an input shows nothing new.
        largest: The side that the network was made for.
        smallest: The least side that it can use.
    """
    cap = min(largest, max(smallest, 2 * side // _SIDE_STEP * _SIDE_STEP))
    below = range((cap - 1) // _SIDE_STEP * _SIDE_STEP, smallest - 1, -_SIDE_STEP)
    return [(side, side) for side in (cap, *below)]


def find_fitting(
    sizes: Sequence[Size], seconds_at: Callable[[Size], float], seconds: float
) -> Size | None:
    """Return the first size that takes no more than these seconds, None if there is none."""
    return next((size for size in sizes if seconds_at(size) <= seconds), None)


def choose_scratch_size(work: Work, name: str, seconds: float) -> Size:
    """Choose the input size of sprint or compact: the images' own if they are small."""
    if work.own_size:
        return work.own_size
    side = max(MIN_SIDE, min(work.side, UNIT_SIDE))
    sizes = [(larger, larger) for larger in _SCRATCH_SIDES if larger <= work.side]

    def seconds_at(size: Size) -> float:
        return work.scratch_seconds(name, size, _MIN_SCRATCH_EPOCHS)

    return find_fitting(sizes, seconds_at, seconds) or (side, side)


def choose_shared_size(source: Source, config: Config, sizes: Sequence[Size]) -> Choice[Size]:
    """Choose the (height, width) of packed images that networks with these inputs share.

    It is the largest input, but never larger than nearly all images themselves: a network whose
    input is larger enlarges them on the device.
    """
    if config.size:
        return Choice(config.size, "set by you")
    own = find_common_size(source)
    if own:
        return Choice(own, SAME_SIZE)
    largest = max(max(size) for size in sizes)
    side = max(MIN_SIDE, min(largest, measure_side(source, _SHARED_FRACTION)))
    reason = "the largest input of a network" if side == largest else "few images are larger"
    return Choice((side, side), reason)
