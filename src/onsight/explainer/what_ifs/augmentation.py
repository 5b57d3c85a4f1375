"""What if random transforms were applied to whole batches instead of single pictures?"""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from onsight.explainer.mend.advice import Edit, Line
from onsight.explainer.script.augmenting import move_to_batches
from onsight.explainer.script.hooks import Hooks, LoaderArguments, is_drawn
from onsight.explainer.script.memory import base_dataset
from onsight.explainer.script.trace import Trace
from onsight.explainer.what_ifs.loading import loading_cause, loading_matters
from onsight.explainer.what_ifs.what_if import Cause, Seen, WhatIf


class AugmentBatches(WhatIf):
    """One call for each batch, in the training process."""

    name = "augment_batches"
    group = "augmentation"
    order = 20  # before Cache, which then finds items without augmentation
    phases = ("data",)
    label = "augmentation of batches"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        item = seen.trace.item
        return [cls(True)] if item and item.is_random and loading_matters(seen.trace) else []

    def install(self, hooks: Hooks) -> None:
        moved: dict[int, Callable[[Any], Any]] = {}  # by loader

        def change(loader: DataLoader[Any], arguments: LoaderArguments) -> None:
            augment = move_to_batches(base_dataset(arguments["dataset"]))
            if augment:
                moved[id(loader)] = augment
            elif is_drawn(arguments):
                raise ValueError("the data set has no random transforms that can be moved")

        original = DataLoader.__iter__

        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            augment = moved.get(id(loader))
            for batch in original(loader):
                yield _on_pictures(augment, batch) if augment else batch

        hooks.on_loader(change)
        hooks.patches.put(DataLoader, "__iter__", iterate)

    def lines(self, trace: Trace) -> list[Edit | Line]:
        assert trace.loader
        return [
            Line(
                trace.loader.site,
                "leave the random transforms out of the data set and call them on the batch: "
                "images = augment(images) in the training loop, after the copy to the device",
            )
        ]

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace)


def _on_pictures(augment: Callable[[Any], Any], batch: Any) -> Any:
    """The batch with its first part, which is its pictures, augmented."""
    if isinstance(batch, list | tuple):
        return [augment(batch[0]), *batch[1:]]
    return augment(batch)
