"""What if the GPU rounded the inputs of fp32 matrix products to TF32?"""

import torch

from onsight_explain.accelerator import has_tf32
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.whole import AtStart
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_LEAST = 0.3  # of the device's time


class MatmulPrecision(WhatIf):
    """NVIDIA's GPUs since Ampere; convolutions are rounded so already."""

    name = "matmul_precision"
    group = "matmul_precision"
    order = 60
    label = "TF32 matrix products"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        trace = seen.trace
        if trace.precision != "fp32" or trace.share("forward", "backward") < _LEAST:
            return []
        return [cls(True)] if has_tf32(torch.device(trace.device)) else []

    def install(self, hooks: Hooks) -> None:
        torch.set_float32_matmul_precision("high")
        hooks.patches.put(torch, "set_float32_matmul_precision", lambda precision: None)

    def lines(self, trace: Trace) -> list[Mend]:
        return [AtStart(None, 'torch.set_float32_matmul_precision("high")')]

    def cause(self, trace: Trace) -> Cause:
        share = percent(trace.share("forward", "backward"))
        return Cause("precision", f"{share} of the time is arithmetic in full fp32")
