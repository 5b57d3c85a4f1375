"""What if the next batch were copied to the GPU while it computes with this one?"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader

from onsight_explain.accelerator import has_streams, module_of
from onsight_explain.mend.ahead import Ahead
from onsight_explain.mend.calls import loader_keywords
from onsight_explain.mend.mend import Mend, Together
from onsight_explain.script.hooks import Hooks, LoaderArguments
from onsight_explain.script.trace import Trace
from onsight_explain.what_ifs.pinned import copy_cause
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_LEAST = 0.05  # of the device's time, in copies


class Prefetch(WhatIf):
    """value: the device. One batch ahead, in a stream of its own, from pinned memory."""

    value: str
    name = "prefetch"
    group = "pinning"
    order = 31
    label = "batches copied ahead"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        trace = seen.trace
        if not trace.loader or not has_streams(torch.device(trace.device)):
            return []
        return [cls(trace.device)] if trace.share("copy") >= _LEAST else []

    def install(self, hooks: Hooks) -> None:
        def change(loader: object, arguments: LoaderArguments) -> None:
            arguments["pin_memory"] = True

        original, device = DataLoader.__iter__, torch.device(self.value)
        hooks.on_loader(change)
        hooks.patches.put(
            DataLoader, "__iter__", lambda loader: copied_ahead(original(loader), device)
        )

    def lines(self, trace: Trace) -> list[Mend]:
        parts = loader_keywords(trace, pin_memory=True), Ahead(trace.forward_site)
        return [Together(None, parts)]

    def cause(self, trace: Trace) -> Cause:
        return copy_cause(trace)


def copied_ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """The batches on the device, each copied while the one before it is in use."""
    backend = module_of(device)
    side = backend.Stream(device)

    def copied() -> Any:
        batch = next(batches, None)
        with backend.stream(side):
            return tree_map(lambda one: _sent(one, device), batch)

    ahead = copied()
    while ahead is not None:
        now = backend.current_stream(device)
        now.wait_stream(side)
        for part in tree_leaves(ahead):
            if isinstance(part, Tensor) and part.device.type == device.type:
                part.record_stream(now)  # its memory must not be used again before that
        batch, ahead = ahead, copied()
        yield batch


def _sent(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
