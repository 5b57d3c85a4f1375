"""Keeps in memory the items of a data set, or the files that they are made from."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, default_collate

from onsight_explain.devices import free_memory_bytes
from onsight_explain.script.seeding import undisturbed
from onsight_explain.tracing.imports import when_imported
from onsight_explain.tracing.patches import Patches

OpenImage = Callable[..., Any]  # PIL.Image.open: PIL is loaded only if the script uses it

_CPU = torch.device("cpu")
_FILL_SECONDS = 20.0
_MEMORY_SHARE = 0.3  # of what is free; stacking the items needs twice that for a moment


class KeptItems(Dataset[Any]):
    """Items made once, before training; if that takes too long, a random part of them.

    Other attributes are those of the original data set. finish: applied to the first part of an
    item, the image, whenever the item is asked for.
    """

    def __init__(self, dataset: Any, finish: Callable[[Any], Any] | None = None) -> None:
        self.dataset, self.finish = dataset, finish
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
        self.items = dict(_fill(dataset, order))
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
        """Several items at once, as loaders ask for them if a data set has this method."""
        return [self[index] for index in indices]

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while being copied or unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def stacked(self) -> "GatheredItems | None":
        """The same items as one tensor for each of their parts; None if they differ in shape."""
        if self.finish:
            return None
        try:
            parts = default_collate([self[number] for number in range(len(self))])
        except (RuntimeError, TypeError, KeyError):
            return None
        if not all(isinstance(part, Tensor) for part in tree_leaves(parts)):
            return None  # such as names
        return GatheredItems(self.dataset, parts, self.is_whole)


class GatheredItems(Dataset[Any]):
    """Items stacked by `default_collate` into one tensor for each part; whole batches by index.

    A loader gets what that function would make of the items, and must not collate it again.
    """

    def __init__(self, dataset: Any, parts: Any, is_whole: bool) -> None:
        self.dataset, self.parts, self.is_whole = dataset, parts, is_whole

    def __len__(self) -> int:
        return len(tree_leaves(self.parts)[0])

    def __getitem__(self, index: int) -> Any:
        return tree_map(lambda part: part[index], self.parts)

    def __getitems__(self, indices: list[int]) -> Any:
        """The batch of these items."""
        places = torch.tensor(indices, device=tree_leaves(self.parts)[0].device)
        return tree_map(lambda part: part.index_select(0, places), self.parts)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while being copied or unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def to(self, device: torch.device) -> "GatheredItems":
        """The same on another device."""
        return GatheredItems(
            self.dataset, tree_map(lambda part: part.to(device), self.parts), self.is_whole
        )


class KeptFiles:
    """Images decoded by PIL, kept by the names of their files."""

    def __init__(self) -> None:
        self.images: dict[str, Any] = {}

    def keeping(self, original: OpenImage) -> OpenImage:
        """`Image.open` that decodes each file only the first time, and gives copies."""

        def open_kept(file: Any, *args: Any, **kwargs: Any) -> Any:
            name = str(file if isinstance(file, str | Path) else getattr(file, "name", ""))
            if not name:  # bytes in memory have no name
                return original(file, *args, **kwargs)
            if name not in self.images:
                image = original(file, *args, **kwargs)
                image.load()
                self.images[name] = image
            return self.images[name].copy()

        return open_kept

    def fill(self, dataset: Any) -> None:
        """Decode as many files as there is time for, before training."""
        for _ in _fill(dataset, range(len(dataset))):
            pass


def change_image_open(change: Callable[[OpenImage], OpenImage], patches: Patches) -> None:
    """Replace `PIL.Image.open`, as soon as PIL is loaded."""
    when_imported(
        "PIL.Image", lambda module: patches.put(module, "open", change(module.open)), patches
    )


def fits(items: int, seconds: float, size: int) -> bool:
    """Whether so many items of so many seconds and bytes each can all be kept."""
    return items * seconds <= _FILL_SECONDS and items * size <= _room()


def item_bytes(item: Any) -> int:
    """The size of an item's tensors and images."""
    total, pillow = 0, sys.modules.get("PIL.Image")
    for leaf in tree_leaves(item):
        if pillow and isinstance(leaf, pillow.Image):
            total += leaf.width * leaf.height * len(leaf.getbands())
        total += getattr(leaf, "nbytes", 0)
    return total


def base_dataset(dataset: Any) -> Any:
    """The data set inside subsets and the like: the first with a transform, or the innermost."""
    while getattr(dataset, "transform", None) is None and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return dataset


@contextmanager
def timed_transform(dataset: Any) -> Iterator[Callable[[], float]]:
    """Time a data set's transform; yields a function for the seconds that it has taken so far."""
    base = base_dataset(dataset)
    former = getattr(base, "transform", None)
    seconds = 0.0

    def timed(*args: Any) -> Any:
        nonlocal seconds
        begun = time.perf_counter()
        try:
            return former(*args)  # type: ignore[misc]
        finally:
            seconds += time.perf_counter() - begun

    if callable(former):
        base.transform = timed
    try:
        yield lambda: seconds
    finally:
        if callable(former):
            base.transform = former


def _room() -> float:
    return _MEMORY_SHARE * free_memory_bytes(_CPU)


def _fill(dataset: Any, order: Any) -> Iterator[tuple[int, Any]]:
    begun, size, room = time.perf_counter(), 0, _room()
    with undisturbed():
        for index in order:
            item = dataset[index]
            yield index, item
            size += item_bytes(item)
            if size > room or time.perf_counter() - begun > _FILL_SECONDS:
                return
