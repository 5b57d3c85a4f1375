"""What if the network computed in bf16, or rounded matrix multiplication to TF32?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from onsight_explain.devices import has_tf32
from onsight_explain.fixes.fix import Fix
from onsight_explain.fixes.statements import IndentUnder
from onsight_explain.fixes.whole_file import AddAtStart
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf

_MIN_SHARE = 0.3  # fraction of the device's time in forward and backward


class MatmulPrecision(WhatIf):
    """Rounds the inputs of fp32 matrix multiplication. Convolutions are rounded already."""

    name = "matmul_precision"
    group = "matmul_precision"
    order = 60
    label = "TF32 matrix multiplication"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        trace = baseline.trace
        if trace.precision != "fp32" or trace.share("forward", "backward") < _MIN_SHARE:
            return []
        return [cls(True)] if has_tf32(torch.device(trace.device)) else []

    def install(self, hooks: Hooks) -> None:
        torch.set_float32_matmul_precision("high")
        hooks.patches.put(torch, "set_float32_matmul_precision", lambda precision: None)

    def fixes(self, trace: Trace) -> list[Fix]:
        return [AddAtStart(None, 'torch.set_float32_matmul_precision("high")')]

    def cause(self, trace: Trace) -> Cause:
        share = percent(trace.share("forward", "backward"))
        return Cause("precision", f"{share} of the time is arithmetic in full fp32")


class Bf16(WhatIf):
    """Runs the network under autocast; its outputs are converted back to fp32."""

    name = "bf16"
    group = "precision"
    order = 75
    phases = ("forward", "backward", "evaluation")
    label = "bf16 autocast"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        return [cls(True)] if baseline.trace.precision == "fp32" else []

    def install(self, hooks: Hooks) -> None:
        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            with torch.autocast(next(network.parameters()).device.type, torch.bfloat16):
                outputs = proceed(*args)
            return tree_map(_to_fp32, outputs)

        hooks.around_network(around)

    def took_effect(self, trace: Trace) -> bool:
        return trace.precision == "bf16"

    def fixes(self, trace: Trace) -> list[Fix]:
        opening = "with torch.autocast({device}, dtype=torch.bfloat16):"
        return [IndentUnder(trace.forward_site, opening, "forward")]

    def cause(self, trace: Trace) -> Cause:
        share = percent(trace.share("forward", "backward"))
        return Cause(
            "precision",
            f"{share} of the time is arithmetic in forward and backward, in {trace.precision}",
        )


def _to_fp32(value: Any) -> Any:
    is_bf16 = isinstance(value, Tensor) and value.dtype is torch.bfloat16
    return value.float() if is_bf16 else value
