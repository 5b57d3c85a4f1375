"""What if evaluation built no graphs for gradients, or used larger batches?"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from onsight_explain.fixes.calls import loader_keywords
from onsight_explain.fixes.fix import Fix
from onsight_explain.fixes.statements import IndentUnder
from onsight_explain.fixes.whole_file import UseInferenceMode
from onsight_explain.script.hooks import Hooks, LoaderArguments
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf

_MIN_SHARE = 0.1  # fraction of the time; below it, larger batches are not tried
_MIN_SHARE_INFERENCE_MODE = 0.2  # higher, because inference_mode saves little per operation
_BATCH_SIZE = 256


class EvaluationBatch(WhatIf):
    """Evaluate in batches of at least `value`, in every loader that is not for training."""

    value: int
    name = "evaluation_batch"
    group = "evaluation_batch"
    order = 36
    phases = ("evaluation",)

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        loader = baseline.trace.evaluation_loader
        is_long = baseline.trace.share("evaluation") >= _MIN_SHARE
        if not loader or not loader.batch_size or not is_long:
            return []
        is_small = 2 * loader.batch_size <= _BATCH_SIZE and (loader.items or 0) >= _BATCH_SIZE
        return [cls(_BATCH_SIZE)] if is_small else []

    @property
    def label(self) -> str:
        return f"evaluation in batches of {self.value}"

    def install(self, hooks: Hooks) -> None:
        def change(loader: object, arguments: LoaderArguments) -> None:
            size = arguments["batch_size"]
            if size and not hooks.is_for_training(arguments) and arguments["batch_sampler"] is None:
                arguments["batch_size"] = max(size, self.value)

        hooks.on_loader(change)

    def fixes(self, trace: Trace) -> list[Fix]:
        evaluation = replace(trace, loader=trace.evaluation_loader)
        return [loader_keywords(evaluation, batch_size=self.value)]

    def cause(self, trace: Trace) -> Cause:
        return evaluation_cause(trace)


class NoGrad(WhatIf):
    """Run the network under no_grad during evaluation."""

    name = "no_grad"
    group = "evaluation"
    order = 80
    phases = ("evaluation",)
    label = "evaluation under no_grad"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        return [cls(True)] if baseline.trace.graphs_kept else []

    def removes_fault(self, baseline: Baseline) -> bool:
        return True

    def install(self, hooks: Hooks) -> None:
        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            needs_grad = torch.is_grad_enabled() and not hooks.is_evaluating()
            with torch.set_grad_enabled(needs_grad):
                return proceed(*args)

        hooks.around_network(around)

    def fixes(self, trace: Trace) -> list[Fix]:
        return [IndentUnder(trace.graphs_site, "with torch.no_grad():", "evaluation")]

    def cause(self, trace: Trace) -> Cause:
        return Cause(
            "no-grad",
            f"{percent(trace.share('evaluation'))} of the time is evaluation, which builds graphs "
            f"for gradients that are never used, at {trace.graphs_site}",
        )


class InferenceMode(WhatIf):
    """Run evaluation under inference_mode, for scripts whose evaluation builds no graphs."""

    name = "inference_mode"
    group = "evaluation"
    order = 81
    phases = ("evaluation",)
    label = "evaluation under inference_mode"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        is_long = baseline.trace.share("evaluation") >= _MIN_SHARE_INFERENCE_MODE
        return [cls(True)] if is_long and not baseline.trace.graphs_kept else []

    def install(self, hooks: Hooks) -> None:
        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            with torch.inference_mode(hooks.is_evaluating()):
                return proceed(*args)

        hooks.around_network(around)

    def fixes(self, trace: Trace) -> list[Fix]:
        return [UseInferenceMode(None)]

    def cause(self, trace: Trace) -> Cause:
        return evaluation_cause(trace)


def evaluation_cause(trace: Trace) -> Cause:
    """Return evaluation as the cause, with its share of the time."""
    return Cause("evaluation", f"{percent(trace.share('evaluation'))} of the time is evaluation")
