"""What if the batches were larger?"""

from dataclasses import dataclass

from onsight.explainer.mend.advice import Edit, Line, loader_edit
from onsight.explainer.script.hooks import Hooks, LoaderArguments, is_drawn
from onsight.explainer.script.trace import Trace
from onsight.explainer.what_ifs.what_if import Cause, Seen, WhatIf
from onsight.words import step_times

_SIZES = (64, 256)  # to try above the script's own
_LEAST_BATCHES = 8  # per epoch, or a batch is too large


@dataclass(frozen=True)
class LargerBatch(WhatIf):
    """value: times the script's batch size; size: the result, for the label."""

    value: int
    size: int = 0
    name = "batch_factor"
    group = "batch"
    order = 35
    keeps_batches = False

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        loader = seen.trace.loader
        if loader is None or not loader.batch_size or not loader.items:
            return []
        fitting = (size for size in _SIZES if loader.items >= _LEAST_BATCHES * size)
        factors = (size // loader.batch_size for size in fitting)
        return [cls(factor, factor * loader.batch_size) for factor in factors if factor > 1]

    @property
    def label(self) -> str:
        return f"batch {self.size}"

    def install(self, hooks: Hooks) -> None:
        def change(loader: object, arguments: LoaderArguments) -> None:
            size = arguments["batch_size"]
            if size and is_drawn(arguments):
                most = max(1, len(arguments["dataset"]))
                arguments["batch_size"] = min(most, size * self.value)

        hooks.on_loader(change)

    def lines(self, trace: Trace) -> list[Edit | Line]:
        assert trace.loader
        assert trace.loader.batch_size
        return [loader_edit(trace, batch_size=self.value * trace.loader.batch_size)]

    def cause(self, trace: Trace) -> Cause:
        (step,) = step_times(trace.seconds / trace.steps)
        return Cause(
            "small-batch",
            f"a step of {trace.batch_size} pictures takes {step}, and most of that is the fixed "
            "cost of Python and of starting operations: a larger batch costs little more",
        )
