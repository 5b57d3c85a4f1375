"""Records a training loop as it runs in this process: phases, steps, losses, reads, call sites."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader

from onsight.accelerator import has_streams
from onsight.explainer.tracing.calls import RootCalls, kind_of
from onsight.explainer.tracing.clock import PhaseClock
from onsight.explainer.tracing.patches import Patches
from onsight.explainer.tracing.sites import Caller, Site, Sites
from onsight.explainer.tracing.window import Snapshot, Window

_FIRST_STEPS = 3  # in which the precision is looked at; it stays the same
KEPT_LOSSES = 40  # of the first steps: enough to compare, few enough to keep

# Calls that make Python wait until a value is known.
_READS = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__")
_COPIES = ("to", "cuda")
_LOSSES = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
)

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class Recorder:
    """Follows a training loop through torch's own calls, from `install` to `undo`.

    on_step: called with this recorder after every update.
    """

    def __init__(
        self,
        clock: PhaseClock,
        sites: Sites,
        seconds: float,
        steps: int,
        warm_up_steps: int,
        on_step: Callable[["Recorder"], None],
    ) -> None:
        self.clock, self.sites, self.on_step = clock, sites, on_step
        self.window = Window(seconds, steps, warm_up_steps, self.look)
        self.patches = Patches()
        self.steps = self.images = self.evaluated = 0
        self.losses: list[Tensor] = []
        self.reads: Counter[Caller] = Counter()
        self.graphs_kept: Counter[Site] = Counter()  # evaluations that build graphs
        self._pending: tuple[int, Site | None] | None = None  # a backward may still follow
        self._kinds: dict[int, tuple[nn.Module, str]] = {}  # by id, kept alive
        self.forward_phase = "forward"  # or evaluation, like the network's last call
        self.forward_site: Site | None = None
        self.made_at: dict[int, Site | None] = {}  # loaders and optimizers, by id
        self.precision = "fp32"
        self.network: nn.Module | None = None
        self.loss: nn.Module | None = None
        self.optimizer: Optimizer | None = None
        self.batch: Tensor | None = None
        self.loader: DataLoader[Any] | None = None
        self.training_loader: DataLoader[Any] | None = None
        self.evaluation_loader: DataLoader[Any] | None = None
        self.training_loaders: dict[int, DataLoader[Any]] = {}  # by id, kept alive too
        self.pageable_bytes = 0
        self._hooks: list[Any] = []
        self._open_steps: list[int] = []

    def install(self) -> None:
        """Start following torch's calls."""
        RootCalls(self._around, self._is_elsewhere).install(self.patches)
        for kind in (DataLoader, Optimizer):
            self.patches.put(kind, "__init__", self._make(kind.__init__))
        self.patches.put(DataLoader, "__iter__", self._iterate(DataLoader.__iter__))
        self.patches.put(torch.autograd, "backward", self._backward(torch.autograd.backward))
        self.time(Optimizer, "zero_grad", "optimizer")
        self.time(nn.utils, "clip_grad_norm_", "optimizer")
        for name in _LOSSES:
            self.time(nn.functional, name, "")
        for name in _READS:
            self.patches.put(Tensor, name, self._read(getattr(Tensor, name)))
        for name in _COPIES:
            self.patches.put(Tensor, name, self._copy(getattr(Tensor, name)))
        for owner in (torch.accelerator, torch.cuda, torch.xpu, torch.mps):
            self.time(owner, "synchronize", "sync")
        self._hooks = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        ]

    def undo(self) -> None:
        """Restore torch as it was."""
        self.patches.undo()
        for hook in self._hooks:
            hook.remove()

    def look(self) -> Snapshot:
        """How far the training is."""
        phases = self.clock.read()
        return Snapshot(
            time.perf_counter(),
            self.steps,
            self.images,
            self.evaluated,
            phases,
        )

    def is_evaluation(self, module: nn.Module) -> bool:
        """Whether no update will follow a forward of the network now."""
        if not module.training or not torch.is_grad_enabled():
            return True
        known = bool(self.training_loaders) and self.loader is not None
        return known and id(self.loader) not in self.training_loaders

    def _is_elsewhere(self) -> bool:
        return self.clock.phase == "data" or not self.clock.is_here

    def _around(self, module: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
        kind = self._kind_of(module)
        if kind != "network":
            if kind == "loss":
                self.loss = module
            depth = self.clock.enter(self.forward_phase if kind == "loss" else kind)
            try:
                return proceed(*args)
            finally:
                self.clock.leave(depth)
        evaluating = self.is_evaluation(module)
        self.forward_phase = "evaluation" if evaluating else "forward"
        self._note_forward(module, args, evaluating)
        depth = self.clock.enter(self.forward_phase)
        try:
            return proceed(*args)
        finally:
            self.clock.leave(depth)

    def _kind_of(self, module: nn.Module) -> str:
        if id(module) not in self._kinds:
            self._kinds[id(module)] = module, kind_of(module)
        return self._kinds[id(module)][1]

    def _note_forward(self, module: nn.Module, args: tuple[Any, ...], evaluating: bool) -> None:
        batch = next((one for one in args if isinstance(one, Tensor) and one.ndim), None)
        count = 0 if batch is None else len(batch)
        self._settle_pending(0)
        if not evaluating:
            self.images += count
            self.network, self.batch = module, batch
            if self.steps < _FIRST_STEPS:
                self.precision = _precision(module)
            if self.forward_site is None:
                self.forward_site = next(iter(self.sites.here()), None)
        elif torch.is_grad_enabled():
            self._pending = count, next(iter(self.sites.here()), None)
        else:
            self.evaluated += count
        if evaluating and self.loader is not self.training_loader:
            self.evaluation_loader = self.loader

    def _settle_pending(self, backwards: int) -> None:
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

    def _make(self, original: Callable[..., None]) -> Callable[..., None]:
        def make(made: object, *args: Any, **kwargs: Any) -> None:
            self.made_at[id(made)] = next(iter(self.sites.here()), None)
            original(made, *args, **kwargs)

        return make

    def _iterate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self

        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            if id(loader) in recorder.training_loaders:
                recorder.window.epoch()
            with recorder.clock.within("data"):
                inner = original(loader)
            return TimedIterator(inner, loader, recorder)

        return iterate

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            self._settle_pending(1)
            if len(self.losses) < KEPT_LOSSES and isinstance(loss, Tensor) and loss.numel() == 1:
                self.losses.append(loss.detach().clone())
            depth = self.clock.enter("backward")
            try:
                return original(loss, *args, **kwargs)
            finally:
                self.clock.leave(depth)

        return backward

    def _read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._is_elsewhere():
                return original(tensor, *args, **kwargs)
            depth = self.clock.enter("sync")  # not `within`: some scripts read very many values
            try:
                return original(tensor, *args, **kwargs)
            finally:
                self.clock.leave(depth)
                self.reads[self.sites.caller()] += 1

        return read

    def _copy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def copy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            depth = self.clock.enter("copy")
            try:
                moved = original(tensor, *args, **kwargs)
            finally:
                self.clock.leave(depth)
            if tensor.device.type == "cpu" and has_streams(moved.device):
                self.pageable_bytes += 0 if tensor.is_pinned() else tensor.nbytes
            return moved

        return copy

    def time(self, owner: Any, name: str, phase: str) -> None:
        """Count a function's time for a phase; "" means that of the last forward."""
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            now = phase or self.forward_phase
            if self.clock.phase == now:  # inside a module whose time is counted already
                return original(*args, **kwargs)
            depth = self.clock.enter(now)
            try:
                return original(*args, **kwargs)
            finally:
                self.clock.leave(depth)

        self.patches.put(owner, name, timed)

    def _step_begins(self, optimizer: Optimizer, *_: Any) -> None:
        self._open_steps.append(self.clock.enter("optimizer"))

    def _step_ends(self, optimizer: Optimizer, *_: Any) -> None:
        self.clock.leave(self._open_steps.pop())
        if self._open_steps:  # of a base class, or of an optimizer inside another
            return
        self.optimizer = self.optimizer or optimizer
        if optimizer is not self.optimizer:  # a second optimizer updates within the same step
            return
        self.steps += 1
        if self.loader is not None:
            self.training_loader = self.training_loaders[id(self.loader)] = self.loader
        self.window.step(self.steps)
        self.on_step(self)


def _precision(network: nn.Module) -> str:
    """The precision that the network computes in."""
    first = next(network.parameters())
    kind = first.device.type
    if torch.is_autocast_enabled(kind):
        return _NAMES.get(torch.get_autocast_dtype(kind), "other")
    return _NAMES.get(first.dtype, "other")


class TimedIterator:
    """A loader's iterator; the time spent waiting for it is counted as `data`."""

    def __init__(self, inner: Iterator[Any], loader: DataLoader[Any], recorder: Recorder) -> None:
        self.inner, self.loader, self.recorder = inner, loader, recorder

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        recorder = self.recorder
        depth = recorder.clock.enter("data")
        try:
            batch = next(self.inner)
        finally:
            recorder.clock.leave(depth)
        recorder.loader = self.loader
        return batch

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
