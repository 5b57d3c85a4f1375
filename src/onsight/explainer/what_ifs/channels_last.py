"""What if pictures and weights were stored with the channels last?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from onsight.explainer.mend.advice import Edit, Line
from onsight.explainer.script.hooks import Hooks
from onsight.explainer.script.trace import Trace
from onsight.explainer.what_ifs.what_if import Cause, Seen, WhatIf
from onsight.words import percent


class ChannelsLast(WhatIf):
    """Convolutions are often faster in NHWC than in NCHW."""

    name = "channels_last"
    group = "memory_format"
    order = 70
    phases = ("forward", "backward", "evaluation")
    label = "channels last"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        is_picture = len(seen.trace.shape) == 3
        return [cls(True)] if is_picture and not seen.trace.is_channels_last else []

    def install(self, hooks: Hooks) -> None:
        converted: set[int] = set()

        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            if id(network) not in converted:
                converted.add(id(network))
                network.to(memory_format=torch.channels_last)
            return proceed(*tree_map(_channels_last, args))

        hooks.around_network(around)

    def lines(self, trace: Trace) -> list[Edit | Line]:
        return [
            Line(
                trace.forward_site,
                "images = images.to(memory_format=torch.channels_last)  # here; and once, "
                "before: model = model.to(memory_format=torch.channels_last)",
            )
        ]

    def cause(self, trace: Trace) -> Cause:
        share = trace.share("forward", "backward")
        return Cause(
            "memory_format",
            f"{percent(share)} of the time is forward and backward with channels first",
        )


def _channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value
