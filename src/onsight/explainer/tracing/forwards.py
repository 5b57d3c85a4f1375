"""Watches forward passes: for training or for evaluation, of how many images, in which phase."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from onsight.explainer.tracing.calls import RootCalls, kind_of
from onsight.explainer.tracing.clock import PhaseClock
from onsight.explainer.tracing.loaders import Loaders
from onsight.explainer.tracing.patches import Patches
from onsight.explainer.tracing.sites import Site, Sites
from onsight.explainer.tracing.timing import timed

_FIRST = 3  # forwards in which the precision is looked at; it stays the same
_LOSSES = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
)
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class Forwards:
    """Follows the outermost calls of modules: the network, its loss, metrics, augmentation.

    images, evaluated: how many images were trained on and evaluated; graphs_kept: evaluations
    that build graphs, by line; site: the user's line of the first forward; phase: of the last
    one, forward or evaluation.
    """

    def __init__(self, clock: PhaseClock, sites: Sites, loaders: Loaders) -> None:
        self.clock, self.sites, self.loaders = clock, sites, loaders
        self.images = self.evaluated = 0
        self.graphs_kept: Counter[Site] = Counter()
        self.phase = "forward"
        self.site: Site | None = None
        self.precision = "fp32"
        self.network: nn.Module | None = None
        self.loss: nn.Module | None = None
        self.batch: Tensor | None = None
        self._seen = 0
        self._pending: tuple[int, Site | None] | None = None  # a backward may still follow
        self._kinds: dict[int, tuple[nn.Module, str]] = {}  # by id, kept alive

    def install(self, patches: Patches) -> None:
        """Start watching."""
        RootCalls(self._around, self.clock.is_elsewhere).install(patches)
        for name in _LOSSES:
            loss = timed(getattr(nn.functional, name), self.clock, lambda: self.phase)
            patches.put(nn.functional, name, loss)

    def is_evaluation(self, module: nn.Module) -> bool:
        """Whether no update will follow a forward of the network now."""
        if not module.training or not torch.is_grad_enabled():
            return True
        return self.loaders.is_of_evaluation()

    def settle(self, backwards: int = 0) -> None:
        """A forward that looked like an evaluation was one if no backward followed it."""
        if self._pending is None:
            return
        count, site = self._pending
        self._pending = None
        if backwards:
            self.images += count
            return
        self.evaluated += count
        if site:
            self.graphs_kept[site] += 1

    def _around(self, module: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
        phase = self._kind_of(module)
        if phase == "network":
            evaluating = self.is_evaluation(module)
            phase = self.phase = "evaluation" if evaluating else "forward"
            self._note(module, args, evaluating)
        elif phase == "loss":
            self.loss, phase = module, self.phase
        depth = self.clock.enter(phase)
        try:
            return proceed(*args)
        finally:
            self.clock.leave(depth)

    def _kind_of(self, module: nn.Module) -> str:
        if id(module) not in self._kinds:
            self._kinds[id(module)] = module, kind_of(module)
        return self._kinds[id(module)][1]

    def _note(self, module: nn.Module, args: tuple[Any, ...], evaluating: bool) -> None:
        batch = next((one for one in args if isinstance(one, Tensor) and one.ndim), None)
        count = 0 if batch is None else len(batch)
        self.settle()
        if not evaluating:
            self.images += count
            self.network, self.batch = module, batch
            if self._seen < _FIRST:
                self._seen += 1
                self.precision = _precision(module)
                self.site = self.site or next(iter(self.sites.here()), None)
        elif torch.is_grad_enabled():
            self._pending = count, next(iter(self.sites.here()), None)
        else:
            self.evaluated += count


def _precision(network: nn.Module) -> str:
    """The precision that the network computes in."""
    first = next(network.parameters())
    kind = first.device.type
    if torch.is_autocast_enabled(kind):
        return _NAMES.get(torch.get_autocast_dtype(kind), "other")
    return _NAMES.get(first.dtype, "other")
