"""Watches what makes Python wait or moves tensors: values that are read, and copies."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onsight_explain.accelerator import has_streams
from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.patches import Patches
from onsight_explain.tracing.sites import Caller, Sites
from onsight_explain.tracing.timing import timed

# Calls that make Python wait until a value is known.
_READS = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__")
_COPIES = ("to", "cuda")


class Transfers:
    """Counts reads by their callers, and bytes that are copied from pageable memory."""

    def __init__(self, clock: PhaseClock, sites: Sites) -> None:
        self.clock, self.sites = clock, sites
        self.reads: Counter[Caller] = Counter()
        self.pageable_bytes = 0

    def install(self, patches: Patches) -> None:
        """Start watching."""
        for name in _READS:
            patches.put(Tensor, name, self._read(getattr(Tensor, name)))
        for name in _COPIES:
            patches.put(Tensor, name, self._copy(getattr(Tensor, name)))
        for owner in (torch.accelerator, torch.cuda, torch.xpu, torch.mps):
            patches.put(owner, "synchronize", timed(owner.synchronize, self.clock, "sync"))

    def _read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.clock.is_elsewhere():
                return original(tensor, *args, **kwargs)
            depth = self.clock.enter("sync")  # not `within`: some scripts read very many values
            try:
                return original(tensor, *args, **kwargs)
            finally:
                self.clock.leave(depth)
                self.reads[self.sites.caller()] += 1

        return read

    def _copy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def copy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            depth = self.clock.enter("copy")
            try:
                moved = original(tensor, *args, **kwargs)
            finally:
                self.clock.leave(depth)
            if tensor.device.type == "cpu" and has_streams(moved.device):
                self.pageable_bytes += 0 if tensor.is_pinned() else tensor.nbytes
            return moved

        return copy
