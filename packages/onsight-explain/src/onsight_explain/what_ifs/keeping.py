"""Gives loaders items that are kept in memory, stacked where they can be."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import default_collate

from onsight_explain.script.hooks import Hooks, LoaderArguments, set_workers
from onsight_explain.script.memory import GatheredItems, KeptItems

Split = Callable[[Any], Callable[[Any], Any] | None]


class Keeper:
    """Replaces the data sets of loaders. device: where stacked items lie."""

    def __init__(self, hooks: Hooks, device: torch.device | None = None) -> None:
        self.hooks, self.device = hooks, device
        self._kept: dict[int, KeptItems] = {}  # by data set, which loaders can share
        self._stacked: dict[int, GatheredItems | None] = {}

    def keep(self, arguments: LoaderArguments, split: Split | None = None) -> bool:
        """Keep the items of a loader; whether its batches are gathered from stacked ones.

        split: leaves a part of the work out of a data set's items, and returns that part.
        """
        dataset = arguments["dataset"]
        set_workers(arguments, 0)  # worker processes do not share what one of them keeps
        key = id(dataset)
        if key not in self._kept:
            self._kept[key] = KeptItems(dataset, split(dataset) if split else None)
        kept: KeptItems | GatheredItems = self._kept[key]
        if _collates_plainly(arguments):
            if key not in self._stacked:
                self._stacked[key] = self._stack(self._kept[key])
            kept = self._stacked[key] or kept
        arguments["dataset"] = kept
        is_gathered = isinstance(kept, GatheredItems)
        if is_gathered:
            arguments["collate_fn"] = _as_it_is
            arguments["pin_memory"] &= self.device is None
        if not kept.is_whole:
            self.hooks.notes.append(
                f"kept {len(kept):,} of {len(dataset):,} items, drawn at random"
            )
            if arguments["sampler"] is not None or arguments["batch_sampler"] is not None:
                arguments |= {"sampler": None, "batch_sampler": None, "shuffle": True}
        return is_gathered

    def _stack(self, kept: KeptItems) -> GatheredItems | None:
        stacked = kept.stacked()
        return stacked.to(self.device) if stacked and self.device else stacked


def _collates_plainly(arguments: LoaderArguments) -> bool:
    """Whether batches are made by torch's own function."""
    is_batched = arguments["batch_size"] is not None or arguments["batch_sampler"] is not None
    return is_batched and arguments["collate_fn"] in (None, default_collate)


def _as_it_is(batch: Any) -> Any:
    return batch
