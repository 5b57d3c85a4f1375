"""The losses of steps, read without making the device wait for the host."""

import math
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from onsight.errors import OnsightError
from onsight.ranks.world import World
from onsight_explain.devices import has_streams, module_of

_LAG = 8  # steps by which the host may be ahead of an accelerator


class NonFiniteStepError(OnsightError):
    """The loss of a step is NaN or infinite.

    Attributes:
        steps_ago: Steps begun since then; if it is 0, the weights were not updated.
    """

    def __init__(self, value: float, steps_ago: int = 0) -> None:
        super().__init__(f"the loss is {value}")
        self.steps_ago = steps_ago


class NonFiniteGradients(NonFiniteStepError):
    """The gradients of a step are not finite, though its loss is; no weight was changed."""

    def __init__(self) -> None:
        OnsightError.__init__(self, "the loss is finite, but its gradients are not")
        self.steps_ago = 0


class DeferredLosses:
    """Takes the loss of each step, and returns it once it can be read without waiting.

    On a CPU that is before the weights are updated. An accelerator lags behind the host, so there a
    loss is returned some steps later: always the same number of steps, because ranks must sum the
    losses of the same step at the same time. Each sum is begun a step before it is waited for.
    """

    def __init__(self, device: torch.device, world: World) -> None:
        self.lag = _LAG if has_streams(device) else 0
        self.device = device
        self.world = world
        self.pending: deque[tuple[Tensor, torch.Event | None]] = deque()
        # Sums over the ranks that were begun, of the steps before the pending ones.
        self.sums: deque[Callable[[], float]] = deque()
        self.is_open = False  # whether a step has pushed its loss but not yet called ready

    def push(self, losses: Tensor) -> None:
        """Add a step's loss, or this rank's part of it; or those (N,) of steps made at once."""
        self.is_open = True
        if self.lag == 0:
            self.pending.append((losses, None))
            self._begin()
            return
        sent = losses.to("cpu", non_blocking=True)  # torch copies into page-locked memory
        copied = module_of(self.device).current_stream(self.device).record_event()
        self.pending.extend((one, copied) for one in sent.view(-1).unbind())

    def ready(self) -> list[float]:
        """Return the losses that have become known, oldest first. Raises NonFiniteStepError."""
        self.is_open = False
        known = []
        while len(self.sums) + len(self.pending) > self.lag:
            known.append(self._finish())
        if self.lag and len(self.pending) == self.lag:  # the next step returns it
            self._begin()
        return known

    def drop_unfinished(self) -> None:
        """Remove the loss of a step that could not be finished."""
        if self.is_open:
            self.is_open = False
            if self.lag:
                self.pending.pop()
            else:
                self.sums.clear()

    def flush(self) -> list[float]:
        """Wait for the device and return all other losses. Raises NonFiniteStepError."""
        while self.pending:
            self._begin()
        return [self._finish() for _ in range(len(self.sums))]

    def _begin(self) -> None:
        loss, copied = self.pending.popleft()
        if copied:
            copied.synchronize()
        self.sums.append(self.world.all_reduce_async(float(loss)))

    def _finish(self) -> float:
        if not self.sums:
            self._begin()
        value = self.sums.popleft()()
        if not math.isfinite(value):
            raise NonFiniteStepError(value, len(self.sums) + len(self.pending))
        return value
