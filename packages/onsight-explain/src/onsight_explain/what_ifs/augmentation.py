"""What if random transforms were applied to whole batches instead of single images?"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from onsight_explain.accelerator import has_streams
from onsight_explain.mend.kept import augmented_batches
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.whole import Advice
from onsight_explain.script.augment_batches import BatchTransform, can_move, move_to_batches
from onsight_explain.script.hooks import Hooks, LoaderArguments
from onsight_explain.script.memory import base_dataset
from onsight_explain.script.trace import Trace
from onsight_explain.what_ifs.keeping import Keeper
from onsight_explain.what_ifs.loading import has_items, loading_cause
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf


class AugmentBatches(WhatIf):
    """value: the device on which the items are kept, without their random part.

    Where the transform is a known one, each image still draws its own numbers.
    """

    value: str

    name = "augment_batches"
    group = "loader"
    order = 20
    phases = ("data",)
    label = "items kept, augmentation of batches"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        item = seen.trace.item
        if not item or not item.is_random or not has_items(seen.trace):
            return []
        return [cls(_place(seen.trace))] if can_move(item.transforms) else []

    def install(self, hooks: Hooks) -> None:
        moved: dict[int, BatchTransform] = {}  # by loader
        by_dataset: dict[int, BatchTransform | None] = {}
        keeper = Keeper(hooks, None if self.value == "cpu" else torch.device(self.value))

        def change(loader: DataLoader[Any], arguments: LoaderArguments) -> None:
            base = base_dataset(arguments["dataset"])
            if id(base) not in by_dataset:
                by_dataset[id(base)] = move_to_batches(base)
            augment = by_dataset[id(base)]
            if augment is None:
                if hooks.is_for_training(arguments):
                    raise ValueError("the data set has no random transforms that can be moved")
                return
            moved[id(loader)] = augment
            for name in augment.shared:
                note = f"{name} draws once for a whole batch"
                hooks.notes += [] if note in hooks.notes else [note]
            keeper.keep(arguments)

        original = DataLoader.__iter__

        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            augment = moved.get(id(loader))
            batches = original(loader)
            return map(augment, batches) if augment else batches

        hooks.on_loader(change)
        hooks.patches.put(DataLoader, "__iter__", iterate)

    def lines(self, trace: Trace) -> list[Mend]:
        assert trace.loader
        if trace.item and trace.item.moved and trace.item.stacks:
            return augmented_batches(trace, self.value)
        return [
            Advice(
                trace.loader.site,
                "leave the random transforms out of the data set and call them on the batch: "
                "images = augment(images) in the training loop, after the copy to the device",
            )
        ]

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace)


def _place(trace: Trace) -> str:
    return trace.device if has_streams(torch.device(trace.device)) else "cpu"
