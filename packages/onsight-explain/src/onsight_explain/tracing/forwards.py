"""Watches forward passes: for training or for evaluation, of how many images, in which phase."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from onsight_explain.tracing.calls import RootCalls, kind_of
from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.imports import when_imported
from onsight_explain.tracing.loaders import Loaders
from onsight_explain.tracing.patches import Patches
from onsight_explain.tracing.sites import Site, Sites
from onsight_explain.tracing.timing import timed

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
    one, forward or evaluation. on_forward: called before the network's forwards.
    """

    def __init__(
        self,
        clock: PhaseClock,
        sites: Sites,
        loaders: Loaders,
        on_forward: Callable[[nn.Module], None],
    ) -> None:
        self.clock, self.sites, self.loaders = clock, sites, loaders
        self.on_forward = on_forward
        self.images = self.evaluated = 0
        self.graphs_kept: Counter[Site] = Counter()
        self.phase = "forward"
        self.site: Site | None = None
        self.precision = "fp32"
        self.network: nn.Module | None = None
        self.loss: nn.Module | None = None
        self.batch: Tensor | None = None
        self._seen = 0
        self._fed = 0  # updates that a loader's batch is known to reach: its own and the next
        self._is_counted = False  # whether this update's images are
        self._pending: tuple[int, Site | None] | None = None  # a backward may still follow
        self._kinds: dict[int, tuple[nn.Module, str]] = {}  # by id, kept alive

    def install(self, patches: Patches) -> None:
        """Start watching."""
        RootCalls(self._around, self.clock.is_elsewhere).install(patches)
        for name in _LOSSES:
            loss = timed(getattr(nn.functional, name), self.clock, lambda: self.phase)
            patches.put(nn.functional, name, loss)
        when_imported("fasttransform.transform", partial(self._time_pipelines, patches), patches)

    def _time_pipelines(self, patches: Patches, module: Any) -> None:
        """fastai's transforms of whole batches."""
        pipeline = module.Pipeline
        patches.put(pipeline, "__call__", timed(pipeline.__call__, self.clock, "augment"))

    @property
    def is_evaluating(self) -> bool:
        """Whether no update will follow the network's forward that is under way."""
        return self.phase == "evaluation"

    def _is_evaluation(self, module: nn.Module) -> bool:
        """Whether no update will follow a forward of the network that begins now."""
        if not module.training or not torch.is_grad_enabled():
            return True
        return self.loaders.is_of_evaluation()

    def note_update(self) -> None:
        """An update has been made."""
        self._fed = max(0, self._fed - 1)
        self._is_counted = False

    def settle(self, is_backward: bool = False) -> None:
        """A forward that looked like an evaluation was one if no backward followed it."""
        if self._pending is None:
            return
        count, site = self._pending
        self._pending = None
        if is_backward:
            self.loaders.note_training()
            self.images += self._new_images(count)
            return
        self.evaluated += count
        if site:
            self.graphs_kept[site] += 1

    def _around(self, module: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
        phase = self._kind_of(module)
        if phase == "network":
            evaluating = self._is_evaluation(module)
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
        self.on_forward(module)
        if not evaluating:
            self.images += self._new_images(count)
            self.network, self.batch = module, batch
            if self._seen < _FIRST:
                self._seen += 1
                self.site = self.site or next(iter(self.sites.here()), None)
                self._look_inside(module)
            return
        self.loaders.note_evaluation()
        if torch.is_grad_enabled():
            self._pending = count, next(iter(self.sites.here()), None)
        else:
            self.evaluated += count

    def _new_images(self, count: int) -> int:
        """Images that no forward was given before this one, of a batch of so many.

        A batch from a loader counts once, however often and in however many parts the network
        sees it; a batch from elsewhere counts whenever the network is given it, but once in an
        optimizer's step that evaluates the network again and again.
        """
        drawn = self.loaders.take()
        if drawn:
            self._fed = 2
        elif not self._fed and not (self._is_counted and self.clock.is_in("optimizer")):
            drawn = count
        self._is_counted = True
        return drawn

    def _look_inside(self, network: nn.Module) -> None:
        """Learn how its last layer computes: a framework may set autocast inside the network."""
        self.precision = _precision(network)
        layers = [one for one in network.modules() if next(one.parameters(False), None) is not None]
        if not layers or _is_translated(network):
            return

        def look(layer: nn.Module, _: Any) -> None:
            handle.remove()
            self.precision = _precision(layer)

        handle = layers[-1].register_forward_pre_hook(look)


def _is_translated(network: nn.Module) -> bool:
    """Whether a compiler has made something else of it, in which hooks would have no place."""
    is_compiled = network._compiled_call_impl is not None or hasattr(network, "_orig_mod")
    return is_compiled or isinstance(network, torch.jit.ScriptModule)


def _precision(network: nn.Module) -> str:
    """The precision that the network computes in."""
    first = next(network.parameters())
    kind = first.device.type
    if torch.is_autocast_enabled(kind):
        return _NAMES.get(torch.get_autocast_dtype(kind), "other")
    return _NAMES.get(first.dtype, "other")
