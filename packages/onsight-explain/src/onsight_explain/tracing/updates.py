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

from onsight_explain.tracing.by_hand import ByHand, other_optimizers
from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.patches import Patches
from onsight_explain.tracing.sites import Made, Sites
from onsight_explain.tracing.timing import timed

KEPT_LOSSES = 40  # of the first steps: enough to compare, few enough to keep


class Updates:
    """Follows every optimizer; one that another one calls is a part of its step.

    on_backward: called before every backward pass; on_update: called after every update.
    trainer: the package whose training loop runs, and the user's line that calls it.
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
        self.trainer = Made()
        self._made: dict[int, Made] = {}  # by id
        self._open: list[int] = []
        self._by_hand = ByHand()
        self._other: object = None  # the first optimizer that is not torch's
        self._patches: Patches | None = None  # until the first backward pass

    def install(self, patches: Patches) -> None:
        """Start watching."""
        self._patches = patches
        patches.put(Optimizer, "__init__", self._make(Optimizer.__init__))
        patches.put(torch.autograd, "backward", self._backward(torch.autograd.backward))
        for owner, name in ((Optimizer, "zero_grad"), (nn.utils, "clip_grad_norm_")):
            patches.put(owner, name, timed(getattr(owner, name), self.clock, "optimizer"))
        patches.when_undone(register_optimizer_step_pre_hook(self._begin).remove)
        patches.when_undone(register_optimizer_step_post_hook(self._end).remove)

    def made(self, optimizer: Optimizer) -> Made:
        """Where an optimizer was made."""
        return self._made.get(id(optimizer)) or Made()

    def look_for_one(self, network: nn.Module) -> None:
        """A forward of the network begins: notice an update that no optimizer has made."""
        if self.optimizer or self._other or self.clock.is_in("optimizer"):
            return
        if self._by_hand.is_made():
            self.on_update()
        self._by_hand.network = network

    def _make(self, original: Callable[..., None]) -> Callable[..., None]:
        def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._made[id(optimizer)] = self.sites.made()
            original(optimizer, *args, **kwargs)

        return make

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            self.on_backward()
            if self._patches:
                self._begin_watching(self._patches)
            if len(self.losses) < KEPT_LOSSES and isinstance(loss, Tensor) and loss.numel() == 1:
                self.losses.append(loss.detach().clone())
            depth = self.clock.enter("backward")
            try:
                return original(loss, *args, **kwargs)
            finally:
                self.clock.leave(depth)
                if not self.optimizer and not self._other:
                    self._by_hand.begin()

        return backward

    def _begin_watching(self, patches: Patches) -> None:
        """The first backward pass: everything that trains has been imported by now."""
        self._patches, self.trainer = None, self.sites.made()
        for kind in other_optimizers():
            patches.put(kind, "step", self._step(vars(kind)["step"]))

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(optimizer: object, *args: Any, **kwargs: Any) -> Any:
            with self.clock.within("optimizer"):
                done = original(optimizer, *args, **kwargs)
            if self.optimizer is None and not self.clock.is_in("optimizer"):  # torch's count
                self._other = self._other or optimizer
                if optimizer is self._other:
                    self.on_update()
            return done

        return step

    def _begin(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._open.append(self.clock.enter("optimizer"))
        # What a closure does besides forward and backward is not the optimizer's work.
        closure = [timed(one, self.clock, "other") if callable(one) else one for one in args[1:]]
        if callable(kwargs.get("closure")):
            kwargs = kwargs | {"closure": timed(kwargs["closure"], self.clock, "other")}
        return (*args[:1], *closure), kwargs

    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        self.clock.leave(self._open.pop())
        if self._open:  # of a base class, or of an optimizer inside another
            return
        self.optimizer = self.optimizer or optimizer
        if optimizer is self.optimizer:  # a second optimizer updates within the same step
            self.on_update()
