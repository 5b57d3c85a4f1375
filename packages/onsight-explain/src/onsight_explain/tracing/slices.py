"""Watches loops without a loader, which take their batches out of a large tensor."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.patches import Patches

_TAKES = ("__getitem__", "index_select")


class Slices:
    """Counts the time for indexing tensors between the other phases as that of data."""

    def __init__(self, clock: PhaseClock) -> None:
        self.clock = clock

    def install(self, patches: Patches) -> None:
        """Start watching."""
        for name in _TAKES:
            patches.put(Tensor, name, self._take(getattr(Tensor, name)))

    def _take(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def take(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if self.clock.phase != "other":
                return original(tensor, *args, **kwargs)
            depth = self.clock.enter("data")
            try:
                return original(tensor, *args, **kwargs)
            finally:
                self.clock.leave(depth)

        return take
