"""Watches forward passes: training or evaluation, of how many images, in which precision."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from onsight_explain.tracing.clock import PhaseClock, timed
from onsight_explain.tracing.loaders import LoaderWatch
from onsight_explain.tracing.patches import Patches, when_imported
from onsight_explain.tracing.sites import Site, Sites

# Called with a module, its arguments, and a function that makes the call with new arguments.
Around = Callable[[nn.Module, tuple[Any, ...], Callable[..., Any]], Any]

_PRECISION_CHECKS = 3  # forwards whose precision is read; it does not change later
_AUGMENTATIONS = ("torchvision.transforms", "kornia.")
_LOSS_FUNCTIONS = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
)
_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class RootCalls:
    """Routes every outermost call of a module through `around(module, arguments, proceed)`.

    The arguments are the positional ones followed by the values of the keyword ones. `proceed`
    makes the call with arguments in the same order.
    """

    def __init__(self, around: Around, is_skipped: Callable[[], bool]) -> None:
        self.around = around
        self.is_skipped = is_skipped  # whether to leave a call alone, as inside a dataset
        self._inside = False

    def install(self, patches: Patches) -> None:
        """Start routing calls."""
        original = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._inside or self.is_skipped():
                return original(module, *args, **kwargs)

            def proceed(*new: Any) -> Any:
                keywords = dict(zip(kwargs, new[len(args) :], strict=True))
                return original(module, *new[: len(args)], **keywords)

            self._inside = True
            try:
                return self.around(module, (*args, *kwargs.values()), proceed)
            finally:
                self._inside = False

        patches.put(nn.Module, "__call__", call)


def kind_of(module: nn.Module) -> str:
    """Classify a module by its package and parameters: network, loss, metrics or augment."""
    package = type(module).__module__
    if package.startswith("torchmetrics"):
        return "metrics"
    if package.startswith(_AUGMENTATIONS):
        return "augment"
    return "network" if next(module.parameters(), None) is not None else "loss"


class ForwardWatch:
    """Follows the outermost calls of modules: the network, its loss, metrics and augmentation."""

    def __init__(
        self,
        clock: PhaseClock,
        sites: Sites,
        loaders: LoaderWatch,
        on_forward: Callable[[nn.Module], None],
    ) -> None:
        self.clock, self.sites, self.loaders = clock, sites, loaders
        self.on_forward = on_forward  # called before each forward of the network
        self.images = self.evaluated = 0  # images trained on and evaluated
        self.graphs_kept: Counter[Site] = Counter()  # evaluations that build graphs, by line
        self.phase = "forward"  # last forward's phase: forward or evaluation
        self.site: Site | None = None  # the user's line of the first forward
        self.precision = "fp32"
        self.network: nn.Module | None = None
        self.loss: nn.Module | None = None
        self.batch: Tensor | None = None
        self._precision_checks = 0
        self._fed = 0  # updates that a loader's batch is known to reach: this one and the next
        self._is_counted = False  # whether the images of this update are counted
        self._pending: tuple[int, Site | None] | None = None  # a backward may still follow
        # By id, which the reference keeps unique.
        self._kinds: dict[int, tuple[nn.Module, str]] = {}

    def install(self, patches: Patches) -> None:
        """Start watching."""
        RootCalls(self._around, self.clock.is_elsewhere).install(patches)
        for name in _LOSS_FUNCTIONS:
            loss = timed(getattr(nn.functional, name), self.clock, lambda: self.phase)
            patches.put(nn.functional, name, loss)
        when_imported("fasttransform.transform", partial(self._time_pipelines, patches), patches)

    @property
    def is_evaluating(self) -> bool:
        """Whether the current forward of the network is an evaluation, without an update."""
        return self.phase == "evaluation"

    def note_update(self) -> None:
        """Note that an update has been made."""
        self._fed = max(0, self._fed - 1)
        self._is_counted = False

    def settle(self, is_backward: bool = False) -> None:
        """Count a supposed evaluation as one, if no backward pass followed it."""
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

    def _time_pipelines(self, patches: Patches, module: Any) -> None:
        """Time fastai's transforms of whole batches."""
        pipeline = module.Pipeline
        patches.put(pipeline, "__call__", timed(pipeline.__call__, self.clock, "augment"))

    def _around(self, module: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
        phase = self._kind_of(module)
        if phase == "network":
            is_evaluation = self._is_evaluation(module)
            phase = self.phase = "evaluation" if is_evaluation else "forward"
            self._note_forward(module, args, is_evaluation)
        elif phase == "loss":
            self.loss, phase = module, self.phase
        with self.clock.within(phase):
            return proceed(*args)

    def _kind_of(self, module: nn.Module) -> str:
        if id(module) not in self._kinds:
            self._kinds[id(module)] = module, kind_of(module)
        return self._kinds[id(module)][1]

    def _is_evaluation(self, module: nn.Module) -> bool:
        """Return whether no update will follow the forward of the network that begins now."""
        if not module.training or not torch.is_grad_enabled():
            return True
        return self.loaders.is_evaluation_batch()

    def _note_forward(self, module: nn.Module, args: tuple[Any, ...], is_evaluation: bool) -> None:
        batch = next((value for value in args if isinstance(value, Tensor) and value.ndim), None)
        count = 0 if batch is None else len(batch)
        self.settle()
        self.on_forward(module)
        if not is_evaluation:
            self.images += self._new_images(count)
            self.network, self.batch = module, batch
            if self._precision_checks < _PRECISION_CHECKS:
                self._precision_checks += 1
                self.site = self.site or self.sites.here()
                self._read_precision(module)
            return
        self.loaders.note_evaluation()
        if torch.is_grad_enabled():
            self._pending = count, self.sites.here()
        else:
            self.evaluated += count

    def _new_images(self, count: int) -> int:
        """Return how many images of a batch were not counted at an earlier forward.

        A batch from a loader counts once, however many times and in however many parts it is passed
        to the network. A batch from elsewhere counts at every forward, but only once in an
        optimizer step that evaluates the network repeatedly.
        """
        loaded = self.loaders.take()
        if loaded:
            self._fed = 2
        elif not self._fed and not (self._is_counted and self.clock.is_in("optimizer")):
            loaded = count
        self._is_counted = True
        return loaded

    def _read_precision(self, network: nn.Module) -> None:
        """Read the precision of the last layer, as a framework may set autocast in the network."""
        self.precision = _precision(network)
        layers = [
            layer
            for layer in network.modules()
            if next(layer.parameters(recurse=False), None) is not None
        ]
        if not layers or _is_compiled(network):
            return

        def read(layer: nn.Module, _: Any) -> None:
            handle.remove()
            self.precision = _precision(layer)

        handle = layers[-1].register_forward_pre_hook(read)


def _is_compiled(network: nn.Module) -> bool:
    """Return whether a compiler has replaced the network, so that hooks would not run."""
    is_compiled = network._compiled_call_impl is not None or hasattr(network, "_orig_mod")
    return is_compiled or isinstance(network, torch.jit.ScriptModule)


def _precision(network: nn.Module) -> str:
    """Return the precision that a network computes in."""
    parameter = next(network.parameters())
    device_type = parameter.device.type
    if torch.is_autocast_enabled(device_type):
        return _PRECISIONS.get(torch.get_autocast_dtype(device_type), "other")
    return _PRECISIONS.get(parameter.dtype, "other")
