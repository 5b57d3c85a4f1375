"""What if images and weights were stored with the channels last?"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from onsight_explain.mend.mend import Mend
from onsight_explain.mend.training import Batch, Once
from onsight_explain.mend.views import Reshape, reshape_views, views
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_VIEW = re.compile(r'File "([^"]+)", line (\d+), in .*\n\s+(.*\.view\(.*)')


class ChannelsLast(WhatIf):
    """Convolutions are often faster in NHWC than in NCHW."""

    name = "channels_last"
    group = "memory_format"
    order = 70
    phases = ("forward", "backward", "evaluation")
    label = "channels last"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        return [cls(True)] if _matters(seen) and not views(seen.tree) else []

    def install(self, hooks: Hooks) -> None:
        converted: set[int] = set()

        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            if id(network) not in converted:
                converted.add(id(network))
                network.to(memory_format=torch.channels_last)
            return proceed(*tree_map(_channels_last, args))

        hooks.around_network(around)

    def shows(self, trace: Trace) -> bool:
        return trace.has_channels_last_weights

    def lines(self, trace: Trace) -> list[Mend]:
        form = "to(memory_format=torch.channels_last)"
        site = trace.forward_site
        return [Once(site, f"{{network}}.{form}"), Batch(site, f"{{}}.{form}")]

    def cause(self, trace: Trace) -> Cause:
        share = trace.share("forward", "backward")
        return Cause(
            "memory_format",
            f"{percent(share)} of the time is forward and backward with channels first",
        )

    def failure(self, said: str) -> str:
        found = _VIEW.findall(said)
        if not found or "view size is not compatible" not in said:
            return ""
        file, line, code = found[-1]
        return f"{Path(file).name}:{line}: write {code.strip().replace('.view(', '.reshape(')}"


class ChannelsLastReshaped(ChannelsLast):
    """The same for a network that flattens with `view`, which then needs `reshape`."""

    name = "channels_last_reshaped"
    order = 71
    label = "channels last, reshape for view"
    rewrites: ClassVar[bool] = True

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        return [cls(True)] if _matters(seen) and views(seen.tree) else []

    def install(self, hooks: Hooks) -> None:
        super().install(hooks)
        hooks.on_source(reshape_views)

    def lines(self, trace: Trace) -> list[Mend]:
        return [*super().lines(trace), Reshape(None)]


def _matters(seen: Seen) -> bool:
    return len(seen.trace.shape) == 3 and not seen.trace.is_channels_last


def _channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value
