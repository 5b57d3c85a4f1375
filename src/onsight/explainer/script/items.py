"""What making one item of a data set costs, and whether items are random."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from onsight.explainer.script.augmenting import moved_steps, transforms_of
from onsight.explainer.script.memory import base_dataset, item_bytes, timed_transform
from onsight.explainer.script.seeding import seed_everything
from onsight.explainer.script.trace import ItemFacts
from onsight.explainer.tracing.patches import Patches

_SECONDS, _ITEMS = 1.5, 256
_SLEEPS = 0.5  # per item, at least, if it waits for a disk or a network


def examine_items(dataset: Any) -> ItemFacts | None:
    """Make some items in this thread and time them; None if the data set has no numbered items."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    order = np.random.default_rng(0).permutation(len(dataset))[:_ITEMS].tolist()
    with timed_transform(dataset) as transform_seconds, _jpeg_sides() as sides:
        begun, worked, slept, count = time.perf_counter(), time.thread_time(), _sleeps(), 0
        while count < len(order) and time.perf_counter() - begun < _SECONDS:
            item = dataset[order[count]]
            count += 1
        seconds = time.perf_counter() - begun
        waited = seconds - (time.thread_time() - worked)
        transformed = transform_seconds()
    # On a busy machine a thread also waits for a core, but it does not give one up by itself.
    sleeps = _sleeps() - slept >= _SLEEPS * count
    return ItemFacts(
        seconds=seconds / count,
        waiting_share=max(0.0, waited / seconds) if sleeps else 0.0,
        transform_share=transformed / seconds,
        is_random=_differs(dataset, order[0]),
        item_bytes=item_bytes(item),
        transforms=[type(one).__name__ for one in transforms_of(base_dataset(dataset))],
        moved=moved_steps(base_dataset(dataset)),
        stacks=_stacks([dataset[place] for place in order[:2]]),
        jpeg_side=min(sides, default=0),
        resized_side=_resized_side(base_dataset(dataset)),
    )


def _sleeps() -> int:
    """How often this thread has waited for something other than a core; 0 if unknown."""
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


@contextmanager
def _jpeg_sides() -> Iterator[list[int]]:
    """The shorter sides of the JPEG files that are opened meanwhile."""
    sides: list[int] = []
    original, patches = Image.open, Patches()

    def opened(*args: Any, **kwargs: Any) -> Image.Image:
        picture = original(*args, **kwargs)
        if picture.format == "JPEG":
            sides.append(min(picture.size))
        return picture

    patches.put(Image, "open", opened)
    try:
        yield sides
    finally:
        patches.undo()


def _resized_side(dataset: Any) -> int:
    """The longer side that the first transform resizes pictures to; 0 if it does something else.

    Twice that for random crops, which show a part of the picture only.
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
        made.append([_plain(leaf) for leaf in tree_leaves(dataset[index])])
    return any(not _equal(made[0], other) for other in made[1:])


def _plain(leaf: Any) -> Any:
    return np.asarray(leaf) if hasattr(leaf, "__array__") or hasattr(leaf, "tobytes") else leaf


def _equal(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
