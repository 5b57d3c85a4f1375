"""Watches backward passes and optimizers: the losses, and when an update has been made."""

from collections.abc import Callable
from inspect import getattr_static
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from onsight_explain.tracing.clock import PhaseClock, timed
from onsight_explain.tracing.patches import Patches
from onsight_explain.tracing.sites import ObjectOrigin, Sites

KEPT_LOSSES = 40  # losses of the first steps; enough to compare, few enough to keep


class UpdateWatch:
    """Follows every optimizer. A step within another optimizer's step is part of that step."""

    def __init__(
        self,
        clock: PhaseClock,
        sites: Sites,
        on_backward: Callable[[], None],
        on_update: Callable[[], None],
    ) -> None:
        self.clock, self.sites = clock, sites
        self.on_backward = on_backward  # called before every backward pass
        self.on_update = on_update  # called after every update
        self.losses: list[Tensor] = []
        self.optimizer: Optimizer | None = None
        self.trainer = ObjectOrigin()  # the package whose loop runs, and the line calling it
        self._origins: dict[int, ObjectOrigin] = {}  # by id of the optimizer
        self._tokens: list[int] = []  # one per started step
        self._manual = _ManualUpdates()
        self._other: object = None  # the first optimizer that is not torch's
        self._patches: Patches | None = None  # removed at the first backward pass

    def install(self, patches: Patches) -> None:
        """Start watching."""
        self._patches = patches
        patches.put(Optimizer, "__init__", self._create(Optimizer.__init__))
        patches.put(torch.autograd, "backward", self._backward(torch.autograd.backward))
        for owner, name in ((Optimizer, "zero_grad"), (nn.utils, "clip_grad_norm_")):
            patches.put(owner, name, timed(getattr(owner, name), self.clock, "optimizer"))
        patches.when_undone(register_optimizer_step_pre_hook(self._begin_step).remove)
        patches.when_undone(register_optimizer_step_post_hook(self._end_step).remove)

    def origin(self, optimizer: Optimizer) -> ObjectOrigin:
        """Return where an optimizer was created."""
        return self._origins.get(id(optimizer)) or ObjectOrigin()

    def check_manual_update(self, network: nn.Module) -> None:
        """Detect, at the start of a forward, an update that was made without an optimizer."""
        if self.optimizer or self._other or self.clock.is_in("optimizer"):
            return
        if self._manual.is_made():
            self.on_update()
        self._manual.network = network

    def _create(self, original: Callable[..., None]) -> Callable[..., None]:
        def create(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._origins[id(optimizer)] = self.sites.origin()
            original(optimizer, *args, **kwargs)

        return create

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            self.on_backward()
            if self._patches:
                self._watch_other_optimizers(self._patches)
            if len(self.losses) < KEPT_LOSSES and isinstance(loss, Tensor) and loss.numel() == 1:
                self.losses.append(loss.detach().clone())
            token = self.clock.enter("backward")
            try:
                return original(loss, *args, **kwargs)
            finally:
                self.clock.leave(token)
                if not self.optimizer and not self._other:
                    self._manual.begin()

        return backward

    def _watch_other_optimizers(self, patches: Patches) -> None:
        """Start at the first backward pass, when everything that trains has been imported."""
        self._patches, self.trainer = None, self.sites.origin()
        for optimizer_class in find_other_optimizers():
            step = vars(optimizer_class)["step"]
            patches.put(optimizer_class, "step", self._other_step(step))

    def _other_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(optimizer: object, *args: Any, **kwargs: Any) -> Any:
            with self.clock.within("optimizer"):
                result = original(optimizer, *args, **kwargs)
            # Torch's optimizers take priority.
            if self.optimizer is None and not self.clock.is_in("optimizer"):
                self._other = self._other or optimizer
                if optimizer is self._other:
                    self.on_update()
            return result

        return step

    def _begin_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._tokens.append(self.clock.enter("optimizer"))
        # What a closure does besides forward and backward is not the optimizer's work.
        rest = [timed(arg, self.clock, "other") if callable(arg) else arg for arg in args[1:]]
        if callable(kwargs.get("closure")):
            kwargs = kwargs | {"closure": timed(kwargs["closure"], self.clock, "other")}
        return (*args[:1], *rest), kwargs

    def _end_step(self, optimizer: Optimizer, *_: Any) -> None:
        self.clock.leave(self._tokens.pop())
        if self._tokens:  # the step of a base class, or of an optimizer inside another
            return
        self.optimizer = self.optimizer or optimizer
        if optimizer is self.optimizer:  # a second optimizer updates within the same step
            self.on_update()


class _ManualUpdates:
    """Detects that weights or gradients have been written since the last backward pass."""

    def __init__(self) -> None:
        self.network: nn.Module | None = None
        self._weight: Tensor | None = None
        self._version: tuple[object, ...] = ()

    def begin(self) -> None:
        """Remember the state of a weight after a backward pass of the network."""
        weights = self.network.parameters() if self.network is not None else iter(())
        self._weight = next((weight for weight in weights if weight.grad is not None), None)
        if self._weight is not None:
            self._version = _version(self._weight)

    def is_made(self) -> bool:
        """Return whether an update has been made since then; True only once."""
        if self._weight is None or _version(self._weight) == self._version:
            return False
        self._weight = None
        return True


def _version(weight: Tensor) -> tuple[object, ...]:
    """Return a value that changes whenever the weight or its gradient is written."""
    gradient = weight.grad
    return weight._version, id(gradient), 0 if gradient is None else gradient._version


def find_other_optimizers() -> list[type]:
    """Return every class outside of torch with its own `step` and a `zero_grad`."""
    optimizers, seen, pending = [], set[type](), [object]
    while pending:
        for kind in type.__subclasses__(pending.pop()):
            if kind in seen:
                continue
            seen.add(kind)
            pending.append(kind)
            if "step" in vars(kind) and getattr_static(kind, "zero_grad", None) is not None:
                optimizers.append(kind)
    return [kind for kind in optimizers if not issubclass(kind, (Optimizer, nn.Module))]
