"""The time that a rank spends in communication with the others, or waiting for them."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from onsight.explainer.tracing.clock import PhaseClock
from onsight.explainer.tracing.patches import Patches

_COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "gather", "scatter", "barrier", "monitored_barrier"),
    *("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_to_all", "all_to_all_single", "send", "recv", "batch_isend_irecv"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
)


class Communication:
    """Counts collectives, and what DistributedDataParallel waits for, as a phase of its own.

    To be installed before the recorder, whose `backward` then lies around this one.
    """

    def __init__(self, clock: PhaseClock) -> None:
        self.clock = clock

    def install(self, patches: Patches) -> None:
        """Start counting; without torch.distributed there is nothing to count."""
        if not dist.is_available():
            return
        owners = (dist, dist.distributed_c10d)
        calls = [(owner, name) for owner in owners for name in _COLLECTIVES if name in vars(owner)]
        for owner, name in (
            *calls,
            (dist.Work, "wait"),
            (DistributedDataParallel, "_sync_buffers"),  # before a forward
        ):
            patches.put(owner, name, self._timed(getattr(owner, name)))
        patches.put(torch.autograd, "backward", self._backward(torch.autograd.backward))

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            depth = self.clock.enter("communication")
            try:
                return original(*args, **kwargs)
            finally:
                self.clock.leave(depth)

        return timed

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Count from the last gradient to the end of a backward pass.

        There DistributedDataParallel waits for the gradients' all-reduce, in a final callback of
        the pass. Callbacks run in the order in which they were queued, so ours, queued when the
        pass begins, is the first.
        """

        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            loss = _first_of(tensors)
            if not (dist.is_initialized() and dist.get_world_size() > 1 and loss is not None):
                return original(tensors, *args, **kwargs)
            hook = loss.register_hook(self._pass_begins)
            try:
                return original(tensors, *args, **kwargs)
            finally:
                hook.remove()

        return backward

    def _pass_begins(self, _: Tensor) -> None:
        engine: Any = Variable._execution_engine
        engine.queue_callback(self._gradients_are_there)

    def _gradients_are_there(self) -> None:
        # On an accelerator its thread runs this; the recorder's `backward` ends the phase.
        self.clock.enter_for_owner("communication")


def _first_of(tensors: Tensor | Sequence[Tensor]) -> Tensor | None:
    """The tensor in whose backward pass a hook can be put."""
    found = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    return next((one for one in found if one.requires_grad), None)
