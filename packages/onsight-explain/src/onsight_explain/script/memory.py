"""Caches the items of a dataset, or the files they are made from, in memory."""

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, default_collate

from onsight_explain.devices import free_memory_bytes
from onsight_explain.tracing.patches import Patches, when_imported

OpenImage = Callable[..., Any]  # PIL.Image.open; PIL is imported only if the script uses it

_CPU = torch.device("cpu")
MAX_FILL_SECONDS = 20.0
_MEMORY_SHARE = 0.3  # fraction of free memory; stacking the items briefly needs twice that


class CachedItems(Dataset[Any]):
    """Items loaded once before training, or a random part of them if that takes too long.

    Other attributes are read from the original dataset.
    """

    def __init__(
        self,
        dataset: Any,
        finish: Callable[[Any], Any] | None = None,
        max_seconds: float = MAX_FILL_SECONDS,
    ) -> None:
        self.dataset = dataset
        self.finish = finish  # applied to an item's first part, the image, at every access
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
        self.items = dict(_fill(dataset, order, max_seconds))
        self.is_whole = len(self.items) == len(dataset)
        self.indices = range(len(dataset)) if self.is_whole else list(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        item = self.items[self.indices[index]]
        if not self.finish:
            return item
        is_pair = isinstance(item, tuple | list)
        return (self.finish(item[0]), *item[1:]) if is_pair else self.finish(item)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return several items; loaders call this if a dataset has it."""
        return [self[index] for index in indices]

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while being copied or unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def stacked(self, device: torch.device | None) -> "GatheredItems | None":
        """Stack each part of the items, and put it on a device; None if their shapes differ."""
        if self.finish:
            return None
        try:
            parts = default_collate([self[number] for number in range(len(self))])
        except (RuntimeError, TypeError, KeyError):
            return None
        if not all(isinstance(part, Tensor) for part in tree_leaves(parts)):
            return None  # such as names
        if device:
            parts = tree_map(lambda part: part.to(device), parts)
        return GatheredItems(self.dataset, parts, self.is_whole)


class GatheredItems(Dataset[Any]):
    """Items stacked by `default_collate` into one tensor for each part, to gather batches by index.

    A loader gets batches as that function would make them, and must not collate them again.
    """

    def __init__(self, dataset: Any, parts: Any, is_whole: bool) -> None:
        self.dataset, self.parts, self.is_whole = dataset, parts, is_whole

    def __len__(self) -> int:
        return len(tree_leaves(self.parts)[0])

    def __getitem__(self, index: int) -> Any:
        return tree_map(lambda part: part[index], self.parts)

    def __getitems__(self, indices: list[int]) -> Any:
        """Return the batch of these items."""
        positions = torch.tensor(indices, device=tree_leaves(self.parts)[0].device)
        return tree_map(lambda part: part.index_select(0, positions), self.parts)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while being copied or unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


class CachedFiles:
    """Images decoded by PIL, cached by file name."""

    def __init__(self) -> None:
        self.images: dict[str, Any] = {}

    def caching(self, original: OpenImage) -> OpenImage:
        """Return an `Image.open` that decodes each file only once and returns copies."""

        def open_cached(file: Any, *args: Any, **kwargs: Any) -> Any:
            name = str(file if isinstance(file, str | Path) else getattr(file, "name", ""))
            if not name:  # bytes in memory have no name
                return original(file, *args, **kwargs)
            if name not in self.images:
                image = original(file, *args, **kwargs)
                image.load()
                self.images[name] = image
            return self.images[name].copy()

        return open_cached

    def fill(self, dataset: Any, max_seconds: float) -> None:
        """Decode as many files as time allows before training."""
        for _ in _fill(dataset, range(len(dataset)), max_seconds):
            pass


def change_image_open(change: Callable[[OpenImage], OpenImage], patches: Patches) -> None:
    """Replace `PIL.Image.open` as soon as PIL is imported."""
    when_imported(
        "PIL.Image", lambda module: patches.put(module, "open", change(module.open)), patches
    )


def fits(items: int, seconds: float, size: int) -> bool:
    """Return whether all items fit the time and memory limits, at this cost per item."""
    return items * seconds <= MAX_FILL_SECONDS and items * size <= _usable_bytes()


def item_bytes(item: Any) -> int:
    """Return the size of an item's tensors and images."""
    total, pillow = 0, sys.modules.get("PIL.Image")
    for leaf in tree_leaves(item):
        if pillow and isinstance(leaf, pillow.Image):
            total += leaf.width * leaf.height * len(leaf.getbands())
        total += getattr(leaf, "nbytes", 0)
    return total


def base_dataset(dataset: Any) -> Any:
    """Return the first dataset with a transform inside subsets and the like, or the innermost."""
    while getattr(dataset, "transform", None) is None and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return dataset


@contextmanager
def transform_replaced(dataset: Any, transform: Callable[..., Any]) -> Iterator[None]:
    """Replace a dataset's transform in the `with` block: other subsets of the dataset share it."""
    base = base_dataset(dataset)
    original = base.transform
    base.transform = transform
    try:
        yield
    finally:
        base.transform = original


@contextmanager
def timed_transform(dataset: Any) -> Iterator[Callable[[], float]]:
    """Time a dataset's transform; yield a function that returns the seconds spent so far."""
    original = getattr(base_dataset(dataset), "transform", None)
    seconds = 0.0

    def timed(*args: Any) -> Any:
        nonlocal seconds
        began = time.perf_counter()
        try:
            return original(*args)  # type: ignore[misc]
        finally:
            seconds += time.perf_counter() - began

    with transform_replaced(dataset, timed) if callable(original) else nullcontext():
        yield lambda: seconds


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the states of all random generators at the end of the `with` block."""
    numpy = sys.modules.get("numpy")
    states = random.getstate(), torch.get_rng_state(), numpy and numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy:
            numpy.random.set_state(states[2])


def _usable_bytes() -> float:
    return _MEMORY_SHARE * free_memory_bytes(_CPU)


def _fill(dataset: Any, order: Any, max_seconds: float) -> Iterator[tuple[int, Any]]:
    """Yield items until time or memory runs out."""
    began, size, usable = time.perf_counter(), 0, _usable_bytes()
    with undisturbed():
        for index in order:
            item = dataset[index]
            yield index, item
            size += item_bytes(item)
            if size > usable or time.perf_counter() - began > max_seconds:
                return
