"""What if batches were copied to the GPU from pinned memory, without waiting for the copy?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onsight_explain.accelerator import has_streams
from onsight_explain.mend.calls import loader_keywords
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.training import NotBlocking
from onsight_explain.script.hooks import Hooks, LoaderArguments
from onsight_explain.script.trace import LoaderFacts, Trace
from onsight_explain.text import percent
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf


class PinnedMemory(WhatIf):
    """The GPU has to wait for copies from pageable memory."""

    name = "pin_memory"
    group = "pinning"
    order = 30
    label = "pinned memory"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        loader, has_link = seen.trace.loader, has_streams(torch.device(seen.trace.device))
        return [cls(True)] if loader and has_link and not loader.is_pinned else []

    def install(self, hooks: Hooks) -> None:
        def change(loader: object, arguments: LoaderArguments) -> None:
            arguments["pin_memory"] = True

        hooks.on_loader(change)
        hooks.patches.put(Tensor, "to", _not_blocking(Tensor.to))

    def lines(self, trace: Trace) -> list[Mend]:
        return [loader_keywords(trace, pin_memory=True), NotBlocking(trace.forward_site)]

    def is_for(self, loader: LoaderFacts) -> bool:
        return not loader.is_pinned

    def cause(self, trace: Trace) -> Cause:
        return copy_cause(trace)


def copy_cause(trace: Trace) -> Cause:
    """Copies that the device waits for."""
    each = trace.pageable_bytes_per_step / 1e6
    return Cause(
        "pageable-copy",
        f"{percent(trace.share('copy'))} of the time is copying to the device, about "
        f"{each:,.1f} MB per step from pageable memory, which the device must wait for",
    )


def _not_blocking(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # A copy to the CPU would be read before it has ended; a bool is non_blocking by position.
        if tensor.device.type == "cpu" and not any(isinstance(one, bool) for one in args):
            kwargs["non_blocking"] = True
        return original(tensor, *args, **kwargs)

    return to
