"""What if images and weights were stored with the channels last?"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from onsight_explain.fixes.fix import Fix
from onsight_explain.fixes.training_loop import BeforeTraining, ConvertBatch
from onsight_explain.fixes.whole_file import UseReshape, find_views, reshape_views
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf

_FAILED_VIEW = re.compile(r'File "([^"]+)", line (\d+), in .*\n\s+(.*\.view\(.*)')


class ChannelsLast(WhatIf):
    """Convert the network and its images to NHWC, in which convolutions are often faster."""

    name = "channels_last"
    group = "memory_format"
    order = 70
    phases = ("forward", "backward", "evaluation")
    label = "channels last"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        return [cls(True)] if _is_applicable(baseline) and not find_views(baseline.tree) else []

    def install(self, hooks: Hooks) -> None:
        converted: set[int] = set()

        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            if id(network) not in converted:
                converted.add(id(network))
                network.to(memory_format=torch.channels_last)
            return proceed(*tree_map(_to_channels_last, args))

        hooks.around_network(around)

    def took_effect(self, trace: Trace) -> bool:
        return trace.has_channels_last_weights

    def fixes(self, trace: Trace) -> list[Fix]:
        convert, site = "to(memory_format=torch.channels_last)", trace.forward_site
        return [
            BeforeTraining(site, f"{{network}}.{convert}"),
            ConvertBatch(site, f"{{}}.{convert}"),
        ]

    def cause(self, trace: Trace) -> Cause:
        share = trace.share("forward", "backward")
        return Cause(
            "memory_format",
            f"{percent(share)} of the time is forward and backward with channels first",
        )

    def explain_failure(self, output: str) -> str:
        views = _FAILED_VIEW.findall(output)
        if not views or "view size is not compatible" not in output:
            return ""
        file, line, code = views[-1]
        return f"{Path(file).name}:{line}: write {code.strip().replace('.view(', '.reshape(')}"


class ChannelsLastReshaped(ChannelsLast):
    """Also replace `view`, which fails on channels last, with `reshape`."""

    name = "channels_last_reshaped"
    order = 71
    label = "channels last, reshape for view"
    rewrites_source = True

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        return [cls(True)] if _is_applicable(baseline) and find_views(baseline.tree) else []

    def install(self, hooks: Hooks) -> None:
        super().install(hooks)
        hooks.on_source(reshape_views)

    def fixes(self, trace: Trace) -> list[Fix]:
        return [*super().fixes(trace), UseReshape(None)]


def _is_applicable(baseline: Baseline) -> bool:
    return len(baseline.trace.shape) == 3 and not baseline.trace.is_channels_last


def _to_channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value
