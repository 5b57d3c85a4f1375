"""What if the loaders had other workers, or decoded JPEG files at a reduced size?"""

from typing import Any

from onsight_explain.fixes.calls import loader_keywords, remove_workers
from onsight_explain.fixes.datasets import DecodeSmaller
from onsight_explain.fixes.fix import Fix
from onsight_explain.script.hooks import Hooks, LoaderArguments, set_workers
from onsight_explain.script.memory import OpenImage, change_image_open, fits
from onsight_explain.script.trace import LoaderFacts, Trace
from onsight_explain.text import percent, plural, step_times
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf

LOADING_GROUP = "loader"  # the group of the what-ifs that change how items are loaded

_MIN_WAITING = 0.05  # fraction of step time; below this, loader changes aren't worth trying
_DOMINANT_SHARE = 0.5  # fraction of the step's or item's time; above it, waiting is the cause
_MIN_TRANSFORM_SHARE = 2 / 3  # fraction of an item's time; above this, transforms are the cause
_MIN_DECODE_SHARE = 0.3  # fraction of an item's time outside the transforms; below it, not tried


class Workers(WhatIf):
    """Load items in `value` worker processes, or in the training process if it is 0."""

    value: int
    name = "workers"
    group = "loader"
    order = 10
    phases = ("data",)

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        loader = baseline.trace.loader
        if loader is None or not loading_matters(baseline.trace):
            return []
        counts = {0, 1, max(1, baseline.cores // 2), baseline.cores} - {loader.workers}
        limit = loader.most_workers or max(counts)
        return [cls(count) for count in sorted(counts) if count <= limit]

    def max_saving(self, baseline: Baseline) -> float:
        """Return what is saved if `value` times as many items are made beside the training."""
        waiting = super().max_saving(baseline)
        loader = baseline.trace.loader
        if not self.value or not loader or loader.workers:
            return waiting
        return 1 - max(waiting / self.value, 1 - waiting)

    def removes_fault(self, baseline: Baseline) -> bool:
        return not self.value and has_too_many_workers(baseline.trace, baseline.cores)

    @property
    def label(self) -> str:
        return plural(self.value, "worker")

    def install(self, hooks: Hooks) -> None:
        def change(loader: object, arguments: LoaderArguments) -> None:
            set_workers(arguments, self.value)

        hooks.on_loader(change)

    def took_effect(self, trace: Trace) -> bool:
        return trace.loader is not None and trace.loader.workers == self.value

    def fixes(self, trace: Trace) -> list[Fix]:
        if not self.value:
            return [remove_workers(trace)]
        return [loader_keywords(trace, num_workers=self.value)]

    def applies_to_evaluation(self, loader: LoaderFacts) -> bool:
        return loader.workers != self.value

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace)


class PersistentWorkers(WhatIf):
    """Keep workers running between epochs. Helps only if whole epochs are measured."""

    name = "persistent_workers"
    group = "loader"
    order = 15
    phases = ("data",)
    label = "persistent workers"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        trace, loader = baseline.trace, baseline.trace.loader
        if loader and loader.workers and trace.epochs and not loader.is_persistent:
            return [cls(True)]
        return []

    def install(self, hooks: Hooks) -> None:
        def change(loader: object, arguments: LoaderArguments) -> None:
            if arguments["num_workers"]:
                arguments["persistent_workers"] = True

        hooks.on_loader(change)

    def fixes(self, trace: Trace) -> list[Fix]:
        return [loader_keywords(trace, persistent_workers=True)]

    def applies_to_evaluation(self, loader: LoaderFacts) -> bool:
        return loader.workers > 0 and not loader.is_persistent

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace)


class SmallerDecode(WhatIf):
    """Decode JPEGs at a reduced size, with sides of at least `value`. Changes pixels slightly.

    Only for datasets that cannot be cached in memory, because caching them is a bigger win.
    """

    value: int
    name = "smaller_decode"
    group = "decode"
    order = 26
    label = "JPEGs decoded at a reduced size (pixels differ slightly)"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        item, loader = baseline.trace.item, baseline.trace.loader
        if not item or not loader or not item.resized_side or not loading_matters(baseline.trace):
            return []
        decode_share = 1 - item.transform_share
        is_large = item.jpeg_side >= 2 * item.resized_side and decode_share >= _MIN_DECODE_SHARE
        can_be_cached = fits(loader.items or 0, item.seconds, item.item_bytes)
        return [cls(item.resized_side)] if is_large and not can_be_cached else []

    def install(self, hooks: Hooks) -> None:
        change_image_open(lambda original: _decoding_smaller(original, self.value), hooks.patches)

    def fixes(self, trace: Trace) -> list[Fix]:
        return [DecodeSmaller(None, self.value)]

    def cause(self, trace: Trace) -> Cause:
        return loading_cause(trace)


def loading_matters(trace: Trace) -> bool:
    """Return whether the script waits for its loader, or has workers."""
    if trace.loader is None:
        return False
    return trace.share("data") >= _MIN_WAITING or trace.loader.workers > 0


def can_replace_items(trace: Trace) -> bool:
    """Return whether loading matters and the dataset's items can be read by index."""
    return loading_matters(trace) and trace.loader is not None and trace.loader.has_items


def has_too_many_workers(trace: Trace, cores: int) -> bool:
    """Return whether several workers and the compute threads together outnumber the cores."""
    workers = trace.loader.workers if trace.loader else 0
    return workers >= 2 and workers + trace.threads > cores


def repeats_slow_work(trace: Trace) -> bool:
    """Return whether fixed transforms or disk reads dominate, so that caching would help."""
    item = trace.item
    if item is None or trace.share("data") <= _DOMINANT_SHARE:
        return False
    is_fixed = item.transform_share > _MIN_TRANSFORM_SHARE and not item.is_random
    return is_fixed or item.waiting_share > _DOMINANT_SHARE


def loading_cause(trace: Trace, caching_helped: bool = False) -> Cause:
    """Return why loading is slow; `caching_helped`: doing repeated work once made it faster."""
    waiting = f"{percent(trace.share('data'))} of the time is spent waiting for the loader"
    item, loader = trace.item, trace.loader
    if item is None or loader is None:
        return Cause("loader", waiting)
    item_time = step_times(item.seconds)[0]
    if item.waiting_share > _DOMINANT_SHARE:
        return Cause(
            "disk",
            f"{waiting}: an item takes {item_time}, {percent(item.waiting_share)} of it "
            "waiting for the disk or the network, not computing",
        )
    transforms = f"{waiting}: an item takes {item_time}, {percent(item.transform_share)} of it in"
    if item.transform_share > _MIN_TRANSFORM_SHARE and item.is_random and not caching_helped:
        return Cause("augmentation", f"{transforms} random transforms, one image at a time")
    if item.transform_share > _MIN_TRANSFORM_SHARE:
        return Cause(
            "slow-transform", f"{transforms} transforms that give the same result every epoch"
        )
    where = "in the training process" if not loader.workers else "in the workers"
    return Cause("loader", f"{waiting}: reading and decoding an item takes {item_time}, {where}")


def _decoding_smaller(original: OpenImage, side: int) -> OpenImage:
    def open_smaller(*args: Any, **kwargs: Any) -> Any:
        image = original(*args, **kwargs)
        if image.format == "JPEG":
            image.draft(None, (side, side))
        return image

    return open_smaller
