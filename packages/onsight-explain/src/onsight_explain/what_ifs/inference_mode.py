"""What if evaluation ran under inference_mode instead of no_grad?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from onsight_explain.mend.mend import Mend
from onsight_explain.mend.rewritten import InferenceModeEverywhere
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_LEAST = 0.2  # of the time: it saves little of each operation


class InferenceMode(WhatIf):
    """Also spares the counting of each tensor's changes; only for evaluation without graphs."""

    name = "inference_mode"
    group = "evaluation"
    order = 81
    phases = ("evaluation",)
    label = "evaluation under inference_mode"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        is_long = seen.trace.share("evaluation") >= _LEAST
        return [cls(True)] if is_long and not seen.trace.graphs_kept else []

    def install(self, hooks: Hooks) -> None:
        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            with torch.inference_mode(hooks.is_evaluating()):
                return proceed(*args)

        hooks.around_network(around)

    def lines(self, trace: Trace) -> list[Mend]:
        return [InferenceModeEverywhere(None)]

    def cause(self, trace: Trace) -> Cause:
        return evaluation_cause(trace)


def evaluation_cause(trace: Trace) -> Cause:
    """Evaluation that takes long."""
    return Cause("evaluation", f"{percent(trace.share('evaluation'))} of the time is evaluation")
