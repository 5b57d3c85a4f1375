"""The work of one step: floating-point operations, and bytes that they read and write."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode


class _ByteCounter(TorchDispatchMode):
    """Adds up the sizes of what operations read and write; views read and write nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = tree_leaves((args, kwargs, out))
            self.bytes += sum(one.nbytes for one in leaves if isinstance(one, torch.Tensor))
        return out


class StepCounter:
    """Counts between `open` and `close`. Counting is slow, so never time a counted step."""

    def __init__(self) -> None:
        self._bytes = _ByteCounter()
        self._flops = FlopCounterMode(display=False)

    def open(self) -> None:
        """Start counting."""
        self._bytes.__enter__()  # type: ignore[no-untyped-call]
        self._flops.__enter__()

    def close(self) -> tuple[int, int]:
        """Operations (a multiplication and an addition are two) and bytes since `open`."""
        self._flops.__exit__(None, None, None)
        self._bytes.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return self._flops.get_total_flops(), self._bytes.bytes
