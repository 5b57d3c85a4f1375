"""What if the network were compiled, or replayed as CUDA graphs?"""

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn

from onsight_explain.devices import has_graphs, has_streams
from onsight_explain.fixes.fix import Advice, Fix
from onsight_explain.fixes.training_loop import BeforeTraining
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf

_MIN_SHARE = 0.4  # fraction of the time in forward and backward; below it, not tried
_MAX_STEP_SECONDS = 0.03  # limit for graphs; longer steps hide the launch time


class CompileNetwork(WhatIf):
    """Compile the network in mode `value`; `reduce-overhead` replays CUDA graphs. GPUs only.

    On a CPU, compiling takes longer than all other trials, and small networks became slower.
    """

    value: Literal["default", "reduce-overhead"]
    name = "compiled"
    group = "compiling"
    order = 72

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        trace, device = baseline.trace, torch.device(baseline.trace.device)
        if not has_streams(device) or not has_compiler() or not _is_bound_by_network(trace):
            return []
        use_graphs = _has_short_steps(trace) and has_graphs(device)
        return [cls("reduce-overhead" if use_graphs else "default")]

    @property
    def label(self) -> str:
        with_graphs = " with CUDA graphs" if self.value == "reduce-overhead" else ""
        return f"torch.compile{with_graphs}"

    def install(self, hooks: Hooks) -> None:
        compiled: set[int] = set()

        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            if id(network) not in compiled:
                compiled.add(id(network))
                network.compile(mode=self.value)
            return proceed(*args)

        exclude_compile_time(hooks)
        hooks.around_network(around)

    def fixes(self, trace: Trace) -> list[Fix]:
        mode = "" if self.value == "default" else f'mode="{self.value}"'
        return [BeforeTraining(trace.forward_site, f"{{network}}.compile({mode})")]

    def cause(self, trace: Trace) -> Cause:
        return _launch_cause(trace)


class GraphNetwork(WhatIf):
    """Replay batches of the first one's shape. A smaller last batch of an epoch runs as before."""

    name = "graphed"
    group = "compiling"
    order = 73
    label = "CUDA graphs"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        trace = baseline.trace
        pays_off = _has_short_steps(trace) and _is_bound_by_network(trace)
        return [cls(True)] if pays_off and has_graphs(torch.device(trace.device)) else []

    def install(self, hooks: Hooks) -> None:
        # By network: the forward as it was, the replayed one, and the shapes that it replays.
        forwards: dict[int, tuple[Any, Any, list[torch.Size]]] = {}

        def around(network: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            shapes = [arg.shape for arg in args if isinstance(arg, Tensor)]
            trains = not hooks.is_evaluating() and len(shapes) == len(args)
            if trains and id(network) not in forwards:
                eager = network.forward
                torch.cuda.make_graphed_callables(network, tuple(arg.clone() for arg in args))
                forwards[id(network)] = eager, network.forward, shapes
            if id(network) in forwards:
                eager, graphed, captured_shapes = forwards[id(network)]
                network.forward = graphed if trains and shapes == captured_shapes else eager
            return proceed(*args)

        hooks.around_network(around)

    def fixes(self, trace: Trace) -> list[Fix]:
        return [
            Advice(
                trace.forward_site,
                "once, before the training: torch.cuda.make_graphed_callables(model, (images,)) "
                "with a batch of the training's shape; drop_last=True in the loader",
            )
        ]

    def cause(self, trace: Trace) -> Cause:
        return _launch_cause(trace)


def exclude_compile_time(hooks: Hooks) -> None:
    """Stop the clock whenever torch compiles, and note for how long."""
    from torch._dynamo.callback import callback_handler

    note = ""

    def resume(_: object) -> None:
        nonlocal note
        hooks.clock.resume()
        if note in hooks.notes:
            hooks.notes.remove(note)
        note = f"compiling took {hooks.clock.paused_seconds:.0f} s, not counted"
        hooks.notes.append(note)

    callback_handler.register_start_callback(lambda _: hooks.clock.pause())
    callback_handler.register_end_callback(resume)


def has_compiler() -> bool:
    """Return whether Triton and a C compiler are installed, which torch.compile needs for a GPU."""
    return find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))


def _has_short_steps(trace: Trace) -> bool:
    return trace.seconds / trace.steps <= _MAX_STEP_SECONDS


def _is_bound_by_network(trace: Trace) -> bool:
    return trace.share("forward", "backward") >= _MIN_SHARE


def _launch_cause(trace: Trace) -> Cause:
    share = percent(trace.share("forward", "backward"))
    return Cause(
        "launches",
        f"{share} of the time is forward and backward, one small operation after another",
    )
