"""Measure the cost of one item of a dataset, whether or not items can be read by index."""

import copy
import itertools
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate
from torch.utils.data._utils import worker

from onsight_explain.ceilings import cpu_threads
from onsight_explain.process.execution import seed_everything
from onsight_explain.python_process import runnable_seconds
from onsight_explain.script.augment_batches import moved_steps, transforms_of
from onsight_explain.script.memory import (
    OpenImage,
    base_dataset,
    change_image_open,
    item_bytes,
    timed_transform,
    undisturbed,
)
from onsight_explain.script.trace import ItemFacts
from onsight_explain.text import plural
from onsight_explain.tracing.loaders import batch_length
from onsight_explain.tracing.patches import Patches

_SECONDS, _ITEMS = 1.5, 256  # limits for loading sample items
_SLEEPS_PER_ITEM = 0.5  # from this many on, assume waits for a disk or a network
_STREAM_TIMEOUT_SECONDS = 3.0  # limit for a dataset that blocks


def examine_items(dataset: Any) -> ItemFacts | None:
    """Load and time some items as a worker would; None if items cannot be read by index."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    with cpu_threads(1):  # several wait for each other, which looks like waiting for a disk
        return _examine_items(dataset)


def _examine_items(dataset: Any) -> ItemFacts:
    order = random.Random(0).sample(range(len(dataset)), min(_ITEMS, len(dataset)))
    with timed_transform(dataset) as transform_seconds, _jpeg_sides() as sides:
        clock, count = _WaitClock(), 0
        began = time.perf_counter()
        while count < len(order) and time.perf_counter() - began < _SECONDS:
            item = dataset[order[count]]
            count += 1
        seconds = time.perf_counter() - began
        waiting_share = clock.waiting_share(count)
        transforming_seconds = transform_seconds()
    base = base_dataset(dataset)
    return ItemFacts(
        seconds=seconds / count,
        waiting_share=waiting_share,
        transform_share=transforming_seconds / seconds,
        is_random=_is_random(dataset, order[0]),
        item_bytes=item_bytes(item),
        transforms=[type(transform).__name__ for transform in transforms_of(base)],
        moved=moved_steps(base),
        stacks=_stacks([dataset[index] for index in order[:2]]),
        jpeg_side=min(sides, default=0),
        resized_side=_resized_side(base),
    )


class _WaitClock:
    """Measures, from its creation on, how long this thread waits for anything but a core."""

    def __init__(self) -> None:
        self.began, self.sleeps_before = time.perf_counter(), _count_sleeps()
        self.runnable_before = runnable_seconds()

    def waiting_share(self, items: int) -> float:
        """Return the share of the time; 0 if the thread was hardly ever asleep for these items.

        A thread that waits for a core has not given one up by itself.
        """
        if _count_sleeps() - self.sleeps_before < _SLEEPS_PER_ITEM * items:
            return 0.0
        seconds = time.perf_counter() - self.began
        runnable = runnable_seconds() - self.runnable_before
        return max(0.0, 1 - runnable / seconds)


def _count_sleeps() -> int:
    """Return how often this thread has waited for anything but a core; 0 if unknown."""
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


@dataclass
class StreamFacts:
    """Observations from iterating over a copy of an iterable dataset."""

    item: ItemFacts | None = None
    shards: int | None = None  # files that workers share, if known
    # Whether it queries which worker it is in; None if it could not be iterated over.
    queries_worker: bool | None = None

    @property
    def most_workers(self) -> int | None:
        """The largest useful number of workers; None if there is no limit.

        More would have no work, or would all read the same.
        """
        return self.shards or (1 if self.queries_worker is False else None)

    def remarks(self, batch_size: int | None, workers: int) -> list[str]:
        """Return remarks on changes that cannot be tried, and why."""
        remarks = ["its dataset has no numbered items, so keeping them in memory was not tried"]
        if self.item is None:
            remarks.append("its dataset could not be iterated over again, so no item was timed")
        if self.shards:
            remarks.append(f"{plural(self.shards, 'shard')}: more workers than that have no work")
        elif self.queries_worker is False:
            effect = "so several workers would all read everything: they were not tried"
            if workers > 1:
                effect = (
                    f"so each of the {workers} workers reads everything: every item occurs "
                    f"{workers} times"
                )
            remarks.append(
                "its dataset never queries which worker it is in "
                f"(torch.utils.data.get_worker_info), {effect}"
            )
        if not batch_size:
            remarks.append("its dataset makes the batches, so larger ones were not tried")
        return remarks


def examine_stream(dataset: Any) -> StreamFacts:
    """Iterate over a copy of a dataset briefly, in a thread, since it may never yield."""
    stream = StreamFacts(shards=count_shards(dataset))

    def iterate() -> None:
        with undisturbed(), _as_only_worker() as worker_info:
            stream.item = _time_stream(copy.copy(dataset))
        stream.queries_worker = worker_info.is_queried

    thread = threading.Thread(target=iterate, daemon=True)
    thread.start()
    thread.join(_STREAM_TIMEOUT_SECONDS)
    return stream


def count_shards(dataset: Any) -> int | None:
    """Return how many files a WebDataset reads, which its workers share."""
    first = next(iter(getattr(dataset, "pipeline", ())), None)
    files = getattr(first, "urls", None)
    return len(files) if isinstance(files, list | tuple) else None


class _WorkerInfo:
    """The info of a loader's only worker, which records whether it is read."""

    def __init__(self) -> None:
        self.is_queried = False

    def __getattr__(self, name: str) -> int:
        self.is_queried = True
        return {"id": 0, "num_workers": 1, "seed": 0}[name]


@contextmanager
def _as_only_worker() -> Iterator[_WorkerInfo]:
    """Make datasets run as in the only worker of a loader."""
    original, info = worker._worker_info, _WorkerInfo()
    worker._worker_info = info  # type: ignore[assignment]
    try:
        yield info
    finally:
        worker._worker_info = original


def _time_stream(dataset: Any) -> ItemFacts | None:
    """Return the cost of an item; if items are whole batches, the cost of an image."""
    clock, began = _WaitClock(), time.perf_counter()
    count, item = 0, None
    for item in itertools.islice(iter(dataset), _ITEMS):
        count += max(1, _count_images(item))
        if time.perf_counter() - began > _SECONDS:
            break
    if not count:
        return None
    return ItemFacts(
        seconds=(time.perf_counter() - began) / count,
        waiting_share=clock.waiting_share(count),
        transform_share=0.0,
        is_random=False,
        item_bytes=item_bytes(item),
    )


def _count_images(item: Any) -> int:
    """Return the number of images in an item, which is above 1 if the dataset makes batches."""
    first = item[0] if isinstance(item, tuple | list) and item else item
    return batch_length(item) if getattr(first, "ndim", 0) == 4 else 1


@contextmanager
def _jpeg_sides() -> Iterator[list[int]]:
    """Collect the shorter sides of the JPEG files opened in the `with` block."""
    sides, patches = list[int](), Patches()

    def watch(original: OpenImage) -> OpenImage:
        def open_image(*args: Any, **kwargs: Any) -> Any:
            image = original(*args, **kwargs)
            if image.format == "JPEG":
                sides.append(min(image.size))
            return image

        return open_image

    change_image_open(watch, patches)
    try:
        yield sides
    finally:
        patches.undo()


def _resized_side(dataset: Any) -> int:
    """Return the longer side that the first transform resizes images to; 0 if it does not.

    Twice that for random crops, which show only a part of the image.
    """
    first = next(iter(transforms_of(dataset)), None)
    size = getattr(first, "size", 0)
    side = max(size) if isinstance(size, list | tuple) else size
    factors = {"Resize": 1, "RandomResizedCrop": 2}
    return int(side or 0) * factors.get(type(first).__name__, 0)


def _stacks(items: list[Any]) -> bool:
    """Return whether `default_collate` turns the items into one list of tensors."""
    try:
        parts = default_collate(items)
    except (RuntimeError, TypeError, KeyError):
        return False
    return type(parts) is list and all(isinstance(part, Tensor) for part in parts)


def _is_random(dataset: Any, index: int) -> bool:
    """Return whether an item changes with the random seed."""
    versions = []
    for seed in range(4):  # several, because two random choices may agree
        seed_everything(seed)
        versions.append(tree_leaves(dataset[index]))
    first, *others = versions
    pairs = [pair for other in others for pair in zip(first, other, strict=True)]
    return not all(_are_equal(*pair) for pair in pairs)


def _are_equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.equal(first, second)
    numpy = sys.modules.get("numpy")  # without it, neither is a NumPy array
    return bool(numpy.array_equal(first, second) if numpy else first == second)
