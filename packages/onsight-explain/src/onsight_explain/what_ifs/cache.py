"""What if work that gives the same result every epoch were done once?"""

from collections.abc import Callable
from typing import Any, Literal

from onsight_explain.mend.calls import no_workers
from onsight_explain.mend.datasets import FixedOnce, OpenOnce
from onsight_explain.mend.kept import kept_batches
from onsight_explain.mend.mend import Mend
from onsight_explain.script.augment_batches import leave_fixed
from onsight_explain.script.hooks import Hooks, LoaderArguments
from onsight_explain.script.memory import KeptFiles, base_dataset, change_image_open
from onsight_explain.script.trace import LoaderFacts, Trace
from onsight_explain.what_ifs.keeping import Keeper
from onsight_explain.what_ifs.loading import has_items, loading_cause, repeats_slow_work
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_LABELS = {
    "items": "items kept in memory",
    "fixed": "fixed transforms once",
    "files": "files decoded once",
}


class Cache(WhatIf):
    """value: what is kept: finished items, items before their random transforms, or files."""

    value: Literal["items", "fixed", "files"]
    name = "cache"
    group = "loader"
    order = 25
    phases = ("data",)

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        item = seen.trace.item
        if item is None or not has_items(seen.trace):
            return []
        if not item.is_random:
            return [cls("items")]
        return [cls("fixed")] if item.transforms else [cls("files")]

    @property
    def label(self) -> str:
        return _LABELS[self.value]

    def removes_fault(self, seen: Seen) -> bool:
        return repeats_slow_work(seen.trace)

    def install(self, hooks: Hooks) -> None:
        files, keeper = KeptFiles(), Keeper(hooks)
        if self.value == "files":
            change_image_open(files.keeping, hooks.patches)

        def change(loader: object, arguments: LoaderArguments) -> None:
            dataset = arguments["dataset"]
            if not hasattr(dataset, "__getitem__"):
                hooks.notes.append("a data set without numbered items cannot be kept in memory")
            elif self.value == "files":
                files.fill(dataset)
            elif self.value == "items":
                keeper.keep(arguments)
            else:
                keeper.keep(arguments, _random_part)

        hooks.on_loader(change)

    def lines(self, trace: Trace) -> list[Mend]:
        assert trace.loader
        if self.value == "items":
            return kept_batches(trace)
        if self.value == "files":
            return [OpenOnce(trace.loader.site)]
        return [FixedOnce(trace.loader.site, trace), no_workers(trace)]

    def is_for(self, loader: LoaderFacts) -> bool:
        return self.value == "items" and loader.has_items

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace, is_repeated=self.value in ("items", "fixed"))


def _random_part(dataset: Any) -> Callable[[Any], Any] | None:
    finish = leave_fixed(base_dataset(dataset))
    if finish is None:
        raise ValueError("the data set has no list of transforms that can be split")
    return finish if finish.transforms else None
