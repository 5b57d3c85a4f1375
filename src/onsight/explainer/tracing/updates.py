"""Watches backward passes and optimizers: losses, and when an update has been made."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from onsight.explainer.tracing.clock import PhaseClock
from onsight.explainer.tracing.patches import Patches
from onsight.explainer.tracing.sites import Made, Sites
from onsight.explainer.tracing.timing import timed

KEPT_LOSSES = 40  # of the first steps: enough to compare, few enough to keep


class Updates:
    """Follows every optimizer; one that another one calls is a part of its step.

    on_backward: called before every backward pass; on_update: called after every update.
    """

    def __init__(
        self,
        clock: PhaseClock,
        sites: Sites,
        on_backward: Callable[[], None],
        on_update: Callable[[], None],
    ) -> None:
        self.clock, self.sites = clock, sites
        self.on_backward, self.on_update = on_backward, on_update
        self.losses: list[Tensor] = []
        self.optimizer: Optimizer | None = None
        self._made: dict[int, Made] = {}  # by id
        self._hooks: list[Any] = []
        self._open: list[int] = []

    def install(self, patches: Patches) -> None:
        """Start watching."""
        patches.put(Optimizer, "__init__", self._make(Optimizer.__init__))
        patches.put(torch.autograd, "backward", self._backward(torch.autograd.backward))
        for owner, name in ((Optimizer, "zero_grad"), (nn.utils, "clip_grad_norm_")):
            patches.put(owner, name, timed(getattr(owner, name), self.clock, "optimizer"))
        self._hooks = [
            register_optimizer_step_pre_hook(self._begin),
            register_optimizer_step_post_hook(self._end),
        ]

    def undo(self) -> None:
        """Stop watching what is not patched."""
        for hook in self._hooks:
            hook.remove()

    def made(self, optimizer: Optimizer) -> Made:
        """Where an optimizer was made."""
        return self._made.get(id(optimizer)) or Made()

    def _make(self, original: Callable[..., None]) -> Callable[..., None]:
        def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._made[id(optimizer)] = self.sites.made()
            original(optimizer, *args, **kwargs)

        return make

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            self.on_backward()
            if len(self.losses) < KEPT_LOSSES and isinstance(loss, Tensor) and loss.numel() == 1:
                self.losses.append(loss.detach().clone())
            depth = self.clock.enter("backward")
            try:
                return original(loss, *args, **kwargs)
            finally:
                self.clock.leave(depth)

        return backward

    def _begin(self, optimizer: Optimizer, *_: Any) -> None:
        self._open.append(self.clock.enter("optimizer"))

    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        self.clock.leave(self._open.pop())
        if self._open:  # of a base class, or of an optimizer inside another
            return
        self.optimizer = self.optimizer or optimizer
        if optimizer is self.optimizer:  # a second optimizer updates within the same step
            self.on_update()
