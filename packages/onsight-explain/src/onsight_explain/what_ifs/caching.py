"""What if results that are the same in every epoch were computed once and cached?"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, default_collate

from onsight_explain.devices import has_streams
from onsight_explain.fixes.calls import remove_workers
from onsight_explain.fixes.datasets import (
    CacheDecodedFiles,
    CacheFixedTransforms,
    cache_and_augment_batches,
    cache_batches,
)
from onsight_explain.fixes.fix import Advice, Fix
from onsight_explain.script.augment_batches import (
    BatchTransform,
    Chain,
    can_move,
    move_to_batches,
    split_at_random,
)
from onsight_explain.script.hooks import Hooks, LoaderArguments, set_workers
from onsight_explain.script.memory import (
    CachedFiles,
    CachedItems,
    GatheredItems,
    base_dataset,
    change_image_open,
    transform_replaced,
)
from onsight_explain.script.trace import LoaderFacts, Trace
from onsight_explain.what_ifs.copies import copy_cause
from onsight_explain.what_ifs.loading import (
    can_replace_items,
    loading_cause,
    repeats_slow_work,
)
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf

_MIN_SHARE = 0.05  # fraction of the time waiting for the loader or copies; below it, not tried
_LABELS = {
    "items": "items cached in memory",
    "fixed": "fixed transforms cached",
    "files": "decoded files cached",
}


class Cache(WhatIf):
    """Cache finished items, items before their random transforms, or files, as in `value`."""

    value: Literal["items", "fixed", "files"]
    name = "cache"
    group = "loader"
    order = 25
    phases = ("data",)

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        item = baseline.trace.item
        if item is None or not can_replace_items(baseline.trace):
            return []
        if not item.is_random:
            return [cls("items")]
        return [cls("fixed")] if item.transforms else [cls("files")]

    @property
    def label(self) -> str:
        return _LABELS[self.value]

    def removes_fault(self, baseline: Baseline) -> bool:
        return repeats_slow_work(baseline.trace)

    def install(self, hooks: Hooks) -> None:
        files, cache = CachedFiles(), _ItemCache(hooks)
        if self.value == "files":
            change_image_open(files.caching, hooks.patches)

        def change(loader: object, arguments: LoaderArguments) -> None:
            dataset = arguments["dataset"]
            if not hasattr(dataset, "__getitem__"):
                hooks.notes.append("a dataset without numbered items cannot be kept in memory")
            elif self.value == "files":
                files.fill(dataset, hooks.max_fill_seconds)
            elif self.value == "items":
                cache.use(arguments)
            elif split := split_at_random(base_dataset(dataset)):
                cache.use(arguments, *split)
            elif hooks.is_for_training(arguments):
                raise ValueError("the dataset has no list of transforms that can be split")

        hooks.on_loader(change)

    def fixes(self, trace: Trace) -> list[Fix]:
        assert trace.loader
        if self.value == "items":
            return cache_batches(trace)
        if self.value == "files":
            return [CacheDecodedFiles(trace.loader.site)]
        return [CacheFixedTransforms(trace.loader.site, trace), remove_workers(trace)]

    def applies_to_evaluation(self, loader: LoaderFacts) -> bool:
        return self.value == "items" and loader.has_items

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace, caching_helped=self.value in ("items", "fixed"))


class CacheOnDevice(WhatIf):
    """Cache all items on the GPU `value`, and gather batches there."""

    value: str
    name = "on_device"
    group = "loader"
    order = 24
    label = "items cached on the GPU"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        trace, item = baseline.trace, baseline.trace.item
        if not item or item.is_random or not has_streams(torch.device(trace.device)):
            return []
        return [cls(trace.device)] if trace.share("data", "copy") >= _MIN_SHARE else []

    def install(self, hooks: Hooks) -> None:
        cache = _ItemCache(hooks, torch.device(self.value))

        def change(loader: object, arguments: LoaderArguments) -> None:
            if not cache.use(arguments):
                raise ValueError("the items cannot be stacked and put on the device")

        hooks.on_loader(change)

    def fixes(self, trace: Trace) -> list[Fix]:
        return cache_batches(trace, self.value)

    def cause(self, trace: Trace) -> Cause:
        is_copying = trace.share("copy") > trace.share("data")
        return copy_cause(trace) if is_copying else loading_cause(trace, caching_helped=True)


class AugmentBatches(WhatIf):
    """Cache items on the device `value`, and apply random transforms to whole batches there.

    Where the transform is a known one, each image still gets separate random numbers.
    """

    value: str
    name = "augment_batches"
    group = "loader"
    order = 20
    phases = ("data",)
    label = "items cached, batches augmented"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        trace, item = baseline.trace, baseline.trace.item
        if not item or not item.is_random or not can_replace_items(trace):
            return []
        device = trace.device if has_streams(torch.device(trace.device)) else "cpu"
        return [cls(device)] if can_move(item.transforms) else []

    def install(self, hooks: Hooks) -> None:
        moved: dict[int, BatchTransform] = {}  # keyed by loader
        cache = _ItemCache(hooks, None if self.value == "cpu" else torch.device(self.value))

        def change(loader: DataLoader[Any], arguments: LoaderArguments) -> None:
            split = move_to_batches(base_dataset(arguments["dataset"]))
            if split is None:
                if hooks.is_for_training(arguments):
                    raise ValueError("the dataset has no random transforms that can be moved")
                return
            kept, augment = split
            moved[id(loader)] = augment
            for name in augment.shared:
                note = f"{name} uses the same random numbers for a whole batch"
                hooks.notes += [] if note in hooks.notes else [note]
            cache.use(arguments, kept)

        original = DataLoader.__iter__

        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            augment = moved.get(id(loader))
            batches = original(loader)
            return map(augment, batches) if augment else batches

        hooks.on_loader(change)
        hooks.patches.put(DataLoader, "__iter__", iterate)

    def fixes(self, trace: Trace) -> list[Fix]:
        assert trace.loader
        if trace.item and trace.item.moved and trace.item.stacks:
            return cache_and_augment_batches(trace, trace.item.moved, self.value)
        return [
            Advice(
                trace.loader.site,
                "leave the random transforms out of the dataset and call them on the batch: "
                "images = augment(images) in the training loop, after the copy to the device",
            )
        ]

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace)


class _ItemCache:
    """Replaces the datasets of loaders with cached ones, stacked if possible."""

    def __init__(self, hooks: Hooks, device: torch.device | None = None) -> None:
        self.hooks = hooks
        self.device = device  # device to store stacked items on
        # By the identity of the dataset, which loaders can share.
        self._items: dict[int, CachedItems] = {}
        self._stacked: dict[int, GatheredItems | None] = {}

    def use(
        self, arguments: LoaderArguments, kept: Chain | None = None, finish: Chain | None = None
    ) -> bool:
        """Change a loader's arguments; return whether its batches are gathered by index now.

        kept: the part of the dataset's transform to make the items with, if not all of it;
        finish: the part to apply to an item at every access.
        """
        dataset = arguments["dataset"]
        set_workers(arguments, 0)  # worker processes do not share what one of them caches
        key = id(dataset)
        if key not in self._items:
            with transform_replaced(dataset, kept) if kept else nullcontext():
                self._items[key] = CachedItems(dataset, finish, self.hooks.max_fill_seconds)
        cached: CachedItems | GatheredItems = self._items[key]
        if _uses_default_collate(arguments):
            if key not in self._stacked:
                self._stacked[key] = self._items[key].stacked(self.device)
            cached = self._stacked[key] or cached
        arguments["dataset"] = cached
        is_gathered = isinstance(cached, GatheredItems)
        if is_gathered:
            arguments["collate_fn"] = _return_batch
            arguments["pin_memory"] &= self.device is None
        if not cached.is_whole:
            self.hooks.notes.append(
                f"kept {len(cached):,} of {len(dataset):,} items, chosen at random"
            )
            if arguments["sampler"] is not None or arguments["batch_sampler"] is not None:
                arguments |= {"sampler": None, "batch_sampler": None, "shuffle": True}
        return is_gathered


def _uses_default_collate(arguments: LoaderArguments) -> bool:
    is_batched = arguments["batch_size"] is not None or arguments["batch_sampler"] is not None
    return is_batched and arguments["collate_fn"] in (None, default_collate)


def _return_batch(batch: Any) -> Any:
    return batch
