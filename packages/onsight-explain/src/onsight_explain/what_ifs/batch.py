"""What if the batches were larger?"""

from dataclasses import dataclass

from onsight_explain.fixes.calls import loader_keywords
from onsight_explain.fixes.fix import Fix
from onsight_explain.script.hooks import Hooks, LoaderArguments
from onsight_explain.script.trace import Trace
from onsight_explain.text import step_times
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf

_SIZES = (64, 256)  # batch sizes to try, if larger than the script's
_MIN_BATCHES = 8  # batches per epoch; with fewer, the batch is too large
_MAX_FIXED_SECONDS = 0.05  # part of a step spent on Python and launches


@dataclass(frozen=True)
class LargerBatch(WhatIf):
    """Train on larger batches: `value` times the script's batch size, which gives `size`."""

    value: int
    size: int = 0
    name = "batch_factor"
    group = "batch"
    order = 35
    phases = ("data", "copy", "forward", "backward", "optimizer", "other")
    keeps_batches = False

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        loader = baseline.trace.loader
        if loader is None or not loader.batch_size or not (loader.items or not loader.has_items):
            return []
        items = loader.items or _MIN_BATCHES * max(_SIZES)  # a stream has any number
        sizes = (size for size in _SIZES if items >= _MIN_BATCHES * size)
        factors = (size // loader.batch_size for size in sizes)
        return [cls(factor, factor * loader.batch_size) for factor in factors if factor > 1]

    @property
    def label(self) -> str:
        return f"batch {self.size}"

    def max_saving(self, baseline: Baseline) -> float:
        fixed_share = _MAX_FIXED_SECONDS * baseline.trace.steps / baseline.trace.seconds
        return min(fixed_share, super().max_saving(baseline))

    def fixed_share(self, ratio: float) -> float:
        """Return the share of a step that does not grow with the batch, from the speed-up."""
        return (1 - 1 / ratio) / (1 - 1 / self.value)

    def install(self, hooks: Hooks) -> None:
        def change(loader: object, arguments: LoaderArguments) -> None:
            size = arguments["batch_size"]
            if size and hooks.is_for_training(arguments):
                dataset = arguments["dataset"]
                limit = len(dataset) if hasattr(dataset, "__len__") else size * self.value
                arguments["batch_size"] = max(1, min(limit, size * self.value))

        hooks.on_loader(change)

    def took_effect(self, trace: Trace) -> bool:
        return trace.loader is not None and trace.loader.batch_size == self.size

    def fixes(self, trace: Trace) -> list[Fix]:
        assert trace.loader
        assert trace.loader.batch_size
        return [loader_keywords(trace, batch_size=self.value * trace.loader.batch_size)]

    def caution(self, trace: Trace) -> str:
        name = trace.optimizer.name if trace.optimizer else ""
        times = self.value if name == "SGD" else self.value**0.5
        return (
            f"Batches {self.value} times as large make fewer updates per epoch, so this is another "
            f"training: raise the learning rate too (up to {times:.3g} times as much"
            f"{f' for {name}' * bool(name)}), perhaps train for more epochs, and compare the "
            "accuracy, which was not measured."
        )

    def cause(self, trace: Trace) -> Cause:
        (step,) = step_times(trace.seconds / trace.steps)
        return Cause(
            "small-batch",
            f"a step of {trace.batch_size} images takes {step}, of which Python and starting "
            "operations cost as much in a larger batch",
        )
