"""What making one item of a data set costs, and whether items are random."""

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from onsight_explain.script.augmenting import moved_steps, transforms_of
from onsight_explain.script.memory import (
    OpenImage,
    base_dataset,
    change_image_open,
    item_bytes,
    timed_transform,
)
from onsight_explain.script.seeding import seed_everything
from onsight_explain.script.trace import ItemFacts
from onsight_explain.tracing.patches import Patches

_SECONDS, _ITEMS = 1.5, 256
_SLEEPS = 0.5  # per item, at least, if it waits for a disk or a network


def examine_items(dataset: Any) -> ItemFacts | None:
    """Make some items in this thread and time them; None if the data set has no numbered items."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    order = random.Random(0).sample(range(len(dataset)), min(_ITEMS, len(dataset)))
    with timed_transform(dataset) as transform_seconds, _jpeg_sides() as sides:
        begun, worked, slept, count = time.perf_counter(), time.thread_time(), sleeps(), 0
        while count < len(order) and time.perf_counter() - begun < _SECONDS:
            item = dataset[order[count]]
            count += 1
        seconds = time.perf_counter() - begun
        waited = seconds - (time.thread_time() - worked)
        transformed = transform_seconds()
    # On a busy machine a thread also waits for a core, but it does not give one up by itself.
    is_asleep = has_slept(sleeps() - slept, count)
    return ItemFacts(
        seconds=seconds / count,
        waiting_share=max(0.0, waited / seconds) if is_asleep else 0.0,
        transform_share=transformed / seconds,
        is_random=_differs(dataset, order[0]),
        item_bytes=item_bytes(item),
        transforms=[type(one).__name__ for one in transforms_of(base_dataset(dataset))],
        moved=moved_steps(base_dataset(dataset)),
        stacks=_stacks([dataset[place] for place in order[:2]]),
        jpeg_side=min(sides, default=0),
        resized_side=_resized_side(base_dataset(dataset)),
    )


def has_slept(times: int, items: int) -> bool:
    """Whether making so many items waited for something else than a core."""
    return times >= _SLEEPS * items


def sleeps() -> int:
    """How often this thread has waited for something other than a core; 0 if unknown."""
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


@contextmanager
def _jpeg_sides() -> Iterator[list[int]]:
    """The shorter sides of the JPEG files that are opened meanwhile."""
    sides, patches = list[int](), Patches()

    def watched(original: OpenImage) -> OpenImage:
        def opened(*args: Any, **kwargs: Any) -> Any:
            image = original(*args, **kwargs)
            if image.format == "JPEG":
                sides.append(min(image.size))
            return image

        return opened

    change_image_open(watched, patches)
    try:
        yield sides
    finally:
        patches.undo()


def _resized_side(dataset: Any) -> int:
    """The longer side that the first transform resizes images to; 0 if it does something else.

    Twice that for random crops, which show a part of the image only.
    """
    first = next(iter(transforms_of(dataset)), None)
    size = getattr(first, "size", 0)
    side = max(size) if isinstance(size, list | tuple) else size
    factors = {"Resize": 1, "RandomResizedCrop": 2}
    return int(side or 0) * factors.get(type(first).__name__, 0)


def _stacks(items: list[Any]) -> bool:
    """Whether `default_collate` makes one list of tensors of the items."""
    try:
        parts = default_collate(items)
    except (RuntimeError, TypeError, KeyError):
        return False
    return type(parts) is list and all(isinstance(part, Tensor) for part in parts)


def _differs(dataset: Any, index: int) -> bool:
    """Whether an item changes with the random seed."""
    made = []
    for seed in range(4):  # several, because two coin flips may agree
        seed_everything(seed)
        made.append(tree_leaves(dataset[index]))
    pairs = [pair for other in made[1:] for pair in zip(made[0], other, strict=True)]
    return not all(_is_equal(*pair) for pair in pairs)


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    numpy = sys.modules.get("numpy")  # nothing of NumPy's is here if it is not loaded
    return bool(numpy.array_equal(one, other) if numpy else one == other)
