"""What if torch.compile fused the network's operations?"""

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import nn

from onsight_explain.accelerator import has_graphs, has_streams
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.training import Once
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_LEAST = 0.4  # of the time, in forward and backward
_SHORT_SECONDS = 0.03  # a step: graphs help where starting operations takes longer than they do


class Compiled(WhatIf):
    """value: torch.compile's mode; `reduce-overhead` replays CUDA graphs. GPUs only.

    On a CPU compiling takes longer than all other trials, and small networks became slower.
    """

    value: Literal["default", "reduce-overhead"]
    name = "compiled"
    group = "compiling"
    order = 72

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        trace, device = seen.trace, torch.device(seen.trace.device)
        if not has_streams(device) or not has_compiler():
            return []
        if trace.share("forward", "backward") < _LEAST:
            return []
        is_short = trace.seconds / trace.steps <= _SHORT_SECONDS
        return [cls("reduce-overhead" if is_short and has_graphs(device) else "default")]

    @property
    def label(self) -> str:
        with_graphs = " with CUDA graphs" if self.value == "reduce-overhead" else ""
        return f"torch.compile{with_graphs}"

    def install(self, hooks: Hooks) -> None:
        compiled: set[int] = set()

        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            if id(network) in compiled:
                return proceed(*args)
            compiled.add(id(network))
            network.compile(mode=self.value)
            return proceed(*args)

        leave_out_compiling(hooks)
        hooks.around_network(around)

    def lines(self, trace: Trace) -> list[Mend]:
        mode = "" if self.value == "default" else f'mode="{self.value}"'
        return [Once(trace.forward_site, f"{{network}}.compile({mode})")]

    def cause(self, trace: Trace) -> Cause:
        return launch_cause(trace)


def leave_out_compiling(hooks: Hooks) -> None:
    """Stop the clock while torch compiles, also backwards and for other shapes, and note it."""
    from torch._dynamo.callback import callback_handler

    note = ""

    def resumed(_: object) -> None:
        nonlocal note
        hooks.clock.resume()
        if note in hooks.notes:
            hooks.notes.remove(note)
        note = f"compiling took {hooks.clock.paused_seconds:.0f} s, not counted"
        hooks.notes.append(note)

    callback_handler.register_start_callback(lambda _: hooks.clock.pause())
    callback_handler.register_end_callback(resumed)


def has_compiler() -> bool:
    """Whether torch.compile finds what it needs for a GPU: Triton, and a C compiler."""
    return find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))


def launch_cause(trace: Trace) -> Cause:
    """Many operations, each of them small."""
    share = percent(trace.share("forward", "backward"))
    return Cause(
        "launches",
        f"{share} of the time is forward and backward, one small operation after another",
    )
