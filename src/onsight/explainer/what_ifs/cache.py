"""What if work that gives the same result every epoch were done once?"""

from collections.abc import Callable
from typing import Any, Literal

from PIL import Image

from onsight.explainer.mend.advice import Edit, Line, loader_edit
from onsight.explainer.script.augmenting import leave_fixed
from onsight.explainer.script.hooks import Hooks, LoaderArguments, set_workers
from onsight.explainer.script.memory import KeptFiles, KeptItems, base_dataset
from onsight.explainer.script.trace import Trace
from onsight.explainer.what_ifs.loading import loading_cause, loading_matters
from onsight.explainer.what_ifs.what_if import Cause, Seen, WhatIf

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

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        item = seen.trace.item
        if item is None or not loading_matters(seen.trace):
            return []
        return [cls("files"), cls("fixed")] if item.is_random else [cls("items")]

    @property
    def label(self) -> str:
        return _LABELS[self.value]

    def install(self, hooks: Hooks) -> None:
        files = KeptFiles()
        kept: dict[int, KeptItems] = {}  # by data set, which loaders can share
        if self.value == "files":
            hooks.patches.put(Image, "open", files.open)

        def change(loader: object, arguments: LoaderArguments) -> None:
            dataset = arguments["dataset"]
            if not hasattr(dataset, "__getitem__"):
                hooks.notes.append("a data set without numbered items cannot be kept in memory")
            elif self.value == "files":
                files.fill(dataset)
            else:
                if id(dataset) not in kept:
                    finish = _random_part(dataset) if self.value == "fixed" else None
                    kept[id(dataset)] = KeptItems(dataset, finish)
                _replace_dataset(arguments, kept[id(dataset)], hooks)

        hooks.on_loader(change)

    def lines(self, trace: Trace) -> list[Edit | Line]:
        assert trace.loader
        site = trace.loader.site
        if self.value == "items":
            return [loader_edit(trace, keeps_items=True, num_workers=0)]
        if self.value == "files":
            return [
                Line(
                    site,
                    "decode each file once: @functools.lru_cache(maxsize=None) over the function "
                    "that opens and decodes it",
                )
            ]
        return [
            loader_edit(trace, num_workers=0),
            Line(
                site,
                "do only once what is not random: keep a list of (picture, label) after the fixed "
                "transforms, and let the data set apply the random ones to it",
            ),
        ]

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace, is_repeated=self.value in ("items", "fixed"))


def _random_part(dataset: Any) -> Callable[[Any], Any]:
    finish = leave_fixed(base_dataset(dataset))
    if finish is None:
        raise ValueError("the data set has no list of transforms that can be split")
    return finish


def _replace_dataset(arguments: LoaderArguments, kept: KeptItems, hooks: Hooks) -> None:
    set_workers(arguments, 0)  # worker processes do not share what one of them keeps
    whole = len(arguments["dataset"])
    arguments["dataset"] = kept
    if not kept.is_whole:
        hooks.notes.append(f"kept {len(kept):,} of {whole:,} items, drawn at random")
        if arguments["sampler"] is not None or arguments["batch_sampler"] is not None:
            arguments |= {"sampler": None, "batch_sampler": None, "shuffle": True}
