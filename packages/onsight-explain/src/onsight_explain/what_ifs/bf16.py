"""What if the network computed in bf16 where autocast allows it?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from onsight_explain.mend.blocks import Under
from onsight_explain.mend.mend import Mend
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf


class Bf16(WhatIf):
    """Autocast around the network, whose outputs are fp32 again, as the script expects."""

    name = "bf16"
    group = "precision"
    order = 75
    phases = ("forward", "backward", "evaluation")
    label = "bf16 autocast"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        return [cls(True)] if seen.trace.precision == "fp32" else []

    def install(self, hooks: Hooks) -> None:
        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            with torch.autocast(next(network.parameters()).device.type, torch.bfloat16):
                out = proceed(*args)
            return tree_map(_full, out)

        hooks.around_network(around)

    def shows(self, trace: Trace) -> bool:
        return trace.precision == "bf16"

    def lines(self, trace: Trace) -> list[Mend]:
        opening = "with torch.autocast({device}, dtype=torch.bfloat16):"
        return [Under(trace.forward_site, opening, "forward")]

    def cause(self, trace: Trace) -> Cause:
        share = percent(trace.share("forward", "backward"))
        return Cause(
            "precision",
            f"{share} of the time is arithmetic in forward and backward, in {trace.precision}",
        )


def _full(value: Any) -> Any:
    is_half = isinstance(value, Tensor) and value.dtype is torch.bfloat16
    return value.float() if is_half else value
