"""Records a training loop while it runs in this process, by watching torch's own calls."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from onsight_explain.devices import has_streams
from onsight_explain.tracing.clock import PhaseClock, timed
from onsight_explain.tracing.forwards import ForwardWatch
from onsight_explain.tracing.loaders import LoaderWatch
from onsight_explain.tracing.patches import Patches
from onsight_explain.tracing.sites import Caller, Sites
from onsight_explain.tracing.updates import UpdateWatch
from onsight_explain.tracing.window import MeasurementWindow, WindowProgress

# Calls that make Python wait until a value is known.
_READS = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__")
_COPIES = ("to", "cuda")
_SLICES = ("__getitem__", "index_select")
_WORK_ATTEMPTS = 3  # steps to count until one contains no evaluation


class Recorder:
    """Follows a training loop from `install` to `undo`; each of its parts watches some calls."""

    def __init__(
        self,
        clock: PhaseClock,
        sites: Sites,
        seconds: float,
        steps: int,
        warm_up_steps: int,
        on_step: Callable[["Recorder"], None],
    ) -> None:
        self.clock, self.sites = clock, sites
        self.on_step = on_step  # called with this recorder after every update
        self.window = MeasurementWindow(seconds, steps, warm_up_steps, self.read_progress)
        self.patches = Patches()
        self.steps = 0
        self.loaders = LoaderWatch(clock, sites, lambda: self.window.on_epoch_start())
        self.updates = UpdateWatch(clock, sites, self._before_backward, self._after_update)
        self.forwards = ForwardWatch(clock, sites, self.loaders, self.updates.check_manual_update)
        self.transfers = TransferWatch(clock, sites)

    def install(self) -> None:
        """Start following torch's calls."""
        for watch in (self.forwards, self.loaders, self.updates, self.transfers):
            watch.install(self.patches)

    def undo(self) -> None:
        """Restore torch as it was."""
        self.patches.undo()

    def time(self, owner: Any, name: str, phase: str) -> None:
        """Count a function's time for a phase."""
        self.patches.put(owner, name, timed(getattr(owner, name), self.clock, phase))

    def read_progress(self) -> WindowProgress:
        """Return a snapshot of the training progress."""
        return WindowProgress(
            self.clock.now,
            self.steps,
            self.forwards.images,
            self.forwards.evaluated,
            self.clock.read(),
        )

    def _before_backward(self) -> None:
        self.forwards.settle(is_backward=True)

    def _after_update(self) -> None:
        self.steps += 1
        self.loaders.note_update()
        self.forwards.note_update()
        self.window.on_step_end(self.steps)
        if self.steps == 1 and not self.loaders.is_used:
            self._time_slices()
        self.on_step(self)

    def _time_slices(self) -> None:
        """Count the indexing of tensors as `data`: the loop slices batches from a large tensor."""

        def phase() -> str:
            return "data" if self.clock.phase == "other" else self.clock.phase

        for name in _SLICES:
            self.patches.put(Tensor, name, timed(getattr(Tensor, name), self.clock, phase))


class TransferWatch:
    """Counts reads of values by their callers, and the bytes copied from pageable memory."""

    def __init__(self, clock: PhaseClock, sites: Sites) -> None:
        self.clock, self.sites = clock, sites
        self.reads: Counter[Caller] = Counter()
        self.pageable_bytes = 0

    def install(self, patches: Patches) -> None:
        """Start watching."""
        for name in _READS:
            patches.put(Tensor, name, self._read(getattr(Tensor, name)))
        for name in _COPIES:
            patches.put(Tensor, name, self._copy(getattr(Tensor, name)))
        for owner in (torch.accelerator, torch.cuda, torch.xpu, torch.mps):
            patches.put(owner, "synchronize", timed(owner.synchronize, self.clock, "sync"))

    def _read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.clock.is_elsewhere():
                return original(tensor, *args, **kwargs)
            token = self.clock.enter("sync")  # not `within`: some scripts read very many values
            try:
                return original(tensor, *args, **kwargs)
            finally:
                self.clock.leave(token)
                self.reads[self.sites.caller()] += 1

        return read

    def _copy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        timed_original = timed(original, self.clock, "copy")

        def copy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            moved = timed_original(tensor, *args, **kwargs)
            if tensor.device.type == "cpu" and has_streams(moved.device):
                self.pageable_bytes += 0 if tensor.is_pinned() else tensor.nbytes
            return moved

        return copy


class StepCounter:
    """Counts the work between `open` and `close`.

    Counting is slow, so never time a counted step.
    """

    def __init__(self) -> None:
        self._bytes = _ByteCounter()
        self._flops = FlopCounterMode(display=False)

    def open(self) -> None:
        """Start counting."""
        self._bytes.__enter__()  # type: ignore[no-untyped-call]
        self._flops.__enter__()

    def close(self) -> tuple[int, int]:
        """Return the FLOPs (a multiply-add is two) and the bytes that operations moved."""
        self._flops.__exit__(None, None, None)
        self._bytes.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return self._flops.get_total_flops(), self._bytes.bytes


class StepWork:
    """Counts the work of the steps after a window until one of them contains no evaluation."""

    def __init__(self) -> None:
        self.counted = (0, 0)  # FLOPs and bytes; zeros until known
        self._counter: StepCounter | None = None
        self._attempts = self._evaluated = 0

    def is_known(self, recorder: Recorder) -> bool:
        """Return, after a step, whether counting is finished; otherwise count the next step."""
        if self._counter:
            counted, self._counter = self._counter.close(), None
            if recorder.forwards.evaluated == self._evaluated:
                self.counted = counted
        if self.counted[0] or self._attempts >= _WORK_ATTEMPTS:
            return True
        self._counter, self._evaluated = StepCounter(), recorder.forwards.evaluated
        self._attempts += 1
        self._counter.open()
        return False


class _ByteCounter(TorchDispatchMode):
    """Sums the bytes that operations read and write; views count as none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = tree_leaves((args, kwargs, out))
            self.bytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))
        return out
