"""What if batches were copied to the GPU without waiting: from pinned memory, or one ahead?"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader

from onsight_explain.devices import has_streams, module_of
from onsight_explain.fixes.calls import loader_keywords
from onsight_explain.fixes.fix import Fix, FixGroup
from onsight_explain.fixes.training_loop import CopyAhead, NonBlockingCopies
from onsight_explain.script.hooks import Hooks, LoaderArguments
from onsight_explain.script.trace import LoaderFacts, Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf

_MIN_COPY_SHARE = 0.05  # fraction of the device's time; below it, not tried


class PinnedMemory(WhatIf):
    """Copy from pinned memory, which does not make a GPU wait as pageable memory does."""

    name = "pin_memory"
    group = "pinning"
    order = 30
    label = "pinned memory"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        loader = baseline.trace.loader
        has_copies = has_streams(torch.device(baseline.trace.device))
        return [cls(True)] if loader and has_copies and not loader.is_pinned else []

    def install(self, hooks: Hooks) -> None:
        hooks.on_loader(_pin)
        hooks.patches.put(Tensor, "to", _non_blocking(Tensor.to))

    def fixes(self, trace: Trace) -> list[Fix]:
        return [loader_keywords(trace, pin_memory=True), NonBlockingCopies(trace.forward_site)]

    def applies_to_evaluation(self, loader: LoaderFacts) -> bool:
        return not loader.is_pinned

    def cause(self, trace: Trace) -> Cause:
        return copy_cause(trace)


class Prefetch(WhatIf):
    """Copy the next batch to device `value` from pinned memory, in a separate stream."""

    value: str
    name = "prefetch"
    group = "pinning"
    order = 31
    label = "batches copied ahead"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        trace = baseline.trace
        if not trace.loader or not has_streams(torch.device(trace.device)):
            return []
        return [cls(trace.device)] if trace.share("copy") >= _MIN_COPY_SHARE else []

    def install(self, hooks: Hooks) -> None:
        original, device = DataLoader.__iter__, torch.device(self.value)
        hooks.on_loader(_pin)
        hooks.patches.put(
            DataLoader, "__iter__", lambda loader: copied_ahead(original(loader), device)
        )

    def fixes(self, trace: Trace) -> list[Fix]:
        parts = loader_keywords(trace, pin_memory=True), CopyAhead(trace.forward_site)
        return [FixGroup(None, parts)]

    def cause(self, trace: Trace) -> Cause:
        return copy_cause(trace)


def copied_ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield the batches on the device, each copied while the one before it is in use."""
    backend = module_of(device)
    side = backend.Stream(device)

    def copy_next() -> Any:
        batch = next(batches, None)
        with backend.stream(side):
            return tree_map(lambda value: _send(value, device), batch)

    ahead = copy_next()
    while ahead is not None:
        current = backend.current_stream(device)
        current.wait_stream(side)
        for part in tree_leaves(ahead):
            if isinstance(part, Tensor) and part.device.type == device.type:
                part.record_stream(current)  # its memory must not be reused before that
        batch, ahead = ahead, copy_next()
        yield batch


def copy_cause(trace: Trace) -> Cause:
    """Return copies, which the device must wait for, as the cause."""
    each = trace.pageable_bytes_per_step / 1e6
    return Cause(
        "pageable-copy",
        f"{percent(trace.share('copy'))} of the time is copying to the device, about "
        f"{each:,.1f} MB per step from pageable memory, which the device must wait for",
    )


def _pin(loader: object, arguments: LoaderArguments) -> None:
    arguments["pin_memory"] = True


def _non_blocking(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap Tensor.to so that copies from the CPU do not wait."""

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # A copy to the CPU would be read before it has ended; a bool is non_blocking by position.
        if tensor.device.type == "cpu" and not any(isinstance(arg, bool) for arg in args):
            kwargs["non_blocking"] = True
        return original(tensor, *args, **kwargs)

    return to


def _send(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
