"""What if evaluation built no graphs for gradients?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from onsight_explain.mend.blocks import Under
from onsight_explain.mend.mend import Mend
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf


class NoGrad(WhatIf):
    """For every forward that no update follows."""

    name = "no_grad"
    group = "evaluation"
    order = 80
    phases = ("evaluation",)
    label = "evaluation under no_grad"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        return [cls(True)] if seen.trace.graphs_kept else []

    def removes_fault(self, seen: Seen) -> bool:
        return True

    def install(self, hooks: Hooks) -> None:
        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            keeps = torch.is_grad_enabled() and not hooks.is_evaluating()
            with torch.set_grad_enabled(keeps):
                return proceed(*args)

        hooks.around_network(around)

    def lines(self, trace: Trace) -> list[Mend]:
        return [Under(trace.graphs_site, "with torch.no_grad():", "evaluation")]

    def cause(self, trace: Trace) -> Cause:
        return Cause(
            "no-grad",
            f"{percent(trace.share('evaluation'))} of the time is evaluation, which builds graphs "
            f"for gradients that are never used, at {trace.graphs_site}",
        )
