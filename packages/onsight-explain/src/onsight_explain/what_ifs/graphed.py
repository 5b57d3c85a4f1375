"""What if the GPU replayed the network's forward and backward as CUDA graphs?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from onsight_explain.accelerator import has_graphs
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.whole import Advice
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.what_ifs.compiled import launch_cause
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_LEAST = 0.4  # of the time, in forward and backward
_SHORT_SECONDS = 0.03  # a step


class Graphed(WhatIf):
    """For batches of the first one's shape; the last one of an epoch runs as before."""

    name = "graphed"
    group = "compiling"
    order = 73
    label = "CUDA graphs"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        trace = seen.trace
        is_short = trace.seconds / trace.steps <= _SHORT_SECONDS
        is_bound = trace.share("forward", "backward") >= _LEAST
        return (
            [cls(True)] if has_graphs(torch.device(trace.device)) and is_short and is_bound else []
        )

    def install(self, hooks: Hooks) -> None:
        forwards: dict[int, tuple[Any, Any, list[torch.Size]]] = {}

        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            shapes = [one.shape for one in args if isinstance(one, Tensor)]
            trains = not hooks.is_evaluating() and len(shapes) == len(args)
            if trains and id(network) not in forwards:
                plain = network.forward
                torch.cuda.make_graphed_callables(network, tuple(one.clone() for one in args))
                forwards[id(network)] = plain, network.forward, shapes
            if id(network) in forwards:
                plain, graphed, captured = forwards[id(network)]
                network.forward = graphed if trains and shapes == captured else plain
            return proceed(*args)

        hooks.around_network(around)

    def lines(self, trace: Trace) -> list[Mend]:
        return [
            Advice(
                trace.forward_site,
                "once, before the training: torch.cuda.make_graphed_callables(model, (images,)) "
                "with a batch of the training's shape; drop_last=True in the loader",
            )
        ]

    def cause(self, trace: Trace) -> Cause:
        return launch_cause(trace)
