"""What if the optimizer updated all tensors in one kernel?"""

from collections.abc import Callable
from typing import Any

import torch

from onsight_explain.mend.calls import optimizer_keywords
from onsight_explain.mend.mend import Mend
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_FUSABLE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


class FusedOptimizer(WhatIf):
    """The same update in fewer operations."""

    name = "fused"
    group = "optimizer"
    order = 90
    phases = ("optimizer",)
    label = "fused optimizer"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        optimizer, names = seen.trace.optimizer, [kind.__name__ for kind in _FUSABLE]
        return (
            [cls(True)] if optimizer and optimizer.name in names and not optimizer.is_fused else []
        )

    def install(self, hooks: Hooks) -> None:
        for kind in _FUSABLE:
            hooks.patches.put(kind, "__init__", _fused(kind.__init__))

    def shows(self, trace: Trace) -> bool:
        return trace.optimizer is not None and trace.optimizer.is_fused

    def lines(self, trace: Trace) -> list[Mend]:
        return [optimizer_keywords(trace, foreach=None, fused=True)]

    def cause(self, trace: Trace) -> Cause:
        return Cause(
            "optimizer",
            f"{percent(trace.share('optimizer'))} of the time is the optimizer, which updates "
            "tensor by tensor",
        )


def _fused(original: Callable[..., None]) -> Callable[..., None]:
    def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **(kwargs | {"fused": True, "foreach": False}))

    return make
