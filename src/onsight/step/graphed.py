"""Training steps that are recorded as a CUDA graph and replayed: one launch instead of dozens.

Source: Nguyen et al., "Accelerating PyTorch with CUDA Graphs" (2021), pytorch.org/blog.
"""

import math
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules import _functions

from onsight.step.deferred_losses import NonFiniteStepError
from onsight.step.step import Step
from onsight_explain.devices import module_of, release_cached_memory

_WARM_UP_STEPS = 3  # in which libraries choose kernels and optimizers make their state
_WARM_UP_STEPS_OF_RANKS = 11  # as torch says: DistributedDataParallel measures the first ten
MAX_STEPS_PER_REPLAY = 8
_LAUNCHES_PER_REPLAY, _LAUNCHES_PER_STEP = 5, 50  # about
_WAITS_ONLY_IF_EAGER = _functions.__file__  # of SyncBatchNorm, which does not while recorded
_MAX_WAITING_BYTES = 64 << 20  # of the inputs of steps that are replayed together

# Computes a step from inputs, targets, labels of the whole batch and learning rates (of each group
# of the optimizer), and writes its loss to the last argument.
RecordStep = Callable[[Tensor, Tensor, Tensor | None, list[Tensor], Tensor], None]


class StepBatch(NamedTuple):
    """What a step is computed from."""

    inputs: Tensor  # of this rank (B, C, H, W)
    targets: Tensor  # labels (B,) or class probabilities (B, K)
    global_labels: Tensor | None  # of the whole batch, if several ranks share it
    learning_rates: list[float]  # of each group of the optimizer


class Recording:
    """Records one step for each of some batches.

    Args:
        examples: Batches of the shapes to record.
        groups: Of the optimizer.
        device: Where steps are computed.
        variant: Precision and number of parts of the recorded steps.
        stream: Where to record.

    Raises:
        RuntimeError: If the steps cannot be recorded.
    """

    def __init__(
        self,
        examples: list[StepBatch],
        groups: list[dict[str, Any]],
        device: torch.device,
        record_step: RecordStep,
        variant: tuple[str, int],
        stream: Any,
    ) -> None:
        self.variant = variant
        self.batches = [
            StepBatch(
                batch.inputs.clone(),
                batch.targets.clone(),
                None if batch.global_labels is None else batch.global_labels.clone(),
                batch.learning_rates,
            )
            for batch in examples
        ]
        self.learning_rates = torch.zeros(len(examples), len(groups), device=device)
        self.losses = torch.zeros(len(examples), device=device)
        module = module_of(device)
        self.graph = module.CUDAGraph()
        # Other threads go on decoding batches, with calls that this one may not make meanwhile.
        options = {"stream": stream, "capture_error_mode": "thread_local"}
        rows = zip(self.batches, self.learning_rates, self.losses, strict=True)
        with _capturable(groups), module.graph(self.graph, **options):
            for batch, learning_rates, loss in rows:
                record_step(*batch[:3], list(learning_rates), loss)

    def replay(self, batches: list[StepBatch]) -> Tensor:
        """Make the steps of some batches; return their losses (N,), valid until the next call."""
        for recorded, given in zip(_columns(self.batches), _columns(batches), strict=True):
            torch._foreach_copy_(recorded, given)
        learning_rates = torch.tensor([batch.learning_rates for batch in batches]).pin_memory()
        self.learning_rates.copy_(learning_rates, non_blocking=True)
        self.graph.replay()
        return self.losses

    def reset(self) -> None:
        """Free the graph."""
        self.graph.reset()


class GraphedStep(Step):
    """A step that replays several full batches of one shape at once.

    The first steps and those of other shapes are made one by one. So are all if the network cannot
    be recorded, which the listener is told. After a loss that is not finite, no step changes the
    weights any more, except in fp16, where the gradient scaler skips single steps.

    Several ranks replay the same steps or none, and a loss that is not finite on one of them stops
    all.

    Args:
        images: Of a full batch, over all ranks.
        steps_per_replay: Of `choose_steps_per_replay`, or 1 if something follows each step.
    """

    def __init__(self, *args: Any, images: int, steps_per_replay: int, **named: Any) -> None:
        super().__init__(*args, **named)
        self.images = images
        self.steps_per_replay = steps_per_replay
        self.warm_up_left = self._warm_up_steps
        self.waiting: list[StepBatch] = []
        self.recording: Recording | None = None
        self.recorded_loss: Tensor | None = None  # of the step that is being recorded
        # 1 once a loss was not finite: the optimizer then changes nothing.
        self.spoiled = None if self.scaler.is_enabled() else torch.zeros((), device=self.device)
        self.losses.lag = max(self.losses.lag, 2 * steps_per_replay)

    def __call__(
        self, inputs: Tensor, targets: Tensor, global_labels: Tensor | None = None
    ) -> list[float]:
        """Update the model now or together with the next steps; otherwise as `Step` does."""
        learning_rates = [float(np.float32(group["lr"])) for group in self.optimizer.param_groups]
        labels = global_labels if self.replica else None
        batch = StepBatch(inputs, targets, labels, learning_rates)
        if self.recording is not None and self.recording.variant != self._variant:
            self.recording, self.warm_up_left = None, self._warm_up_steps
        # A rank's share may be as large as usual although the whole batch is smaller.
        is_full = len(inputs if labels is None else labels) == self.images
        if is_full and self.warm_up_left:
            return self._warm_up(batch)
        self.waiting.append(batch)
        if self.refused or not is_full:
            return self._catch_up()
        is_complete = len(self.waiting) == self.steps_per_replay
        return self._replay() if is_complete else self.losses.ready()

    @property
    def guards_weights(self) -> bool:
        """Whether a step with a loss that is not finite leaves the weights as they are."""
        return self.spoiled is not None

    def set_full_batch(self, images: int) -> None:
        """Set how many images a full batch has, over all ranks."""
        super().set_full_batch(images)
        self.images = images

    def flush(self) -> list[float]:
        """Make the steps that wait for others; then as `Step` does."""
        return [*self._catch_up(), *super().flush()]

    # One by one

    def _make(self, batch: StepBatch) -> list[float]:
        self._set_learning_rates(batch.learning_rates)
        with self.replica.on_stream() if self.replica else nullcontext():
            return super().__call__(batch.inputs, batch.targets, batch.global_labels)

    def _catch_up(self) -> list[float]:
        """Make the steps that wait for others, one by one."""
        known = []
        while self.waiting:
            batch = self.waiting.pop(0)
            try:
                known += self._make(batch)
            except NonFiniteStepError as error:
                error.steps_ago += len(self.waiting)  # which count as begun
                raise
        return known

    def _warm_up(self, batch: StepBatch) -> list[float]:
        """Make a step, and find out whether steps can be recorded."""
        self.warm_up_left -= 1
        is_first = self.warm_up_left == self._warm_up_steps - 1
        with watch_random_numbers(self.device) as drawn, watch_waits(self.device) as lines:
            losses = self._make(batch)
        if drawn["host"]:
            self._refuse("the network draws random numbers on the host")
        if drawn["device"]:
            self.steps_per_replay = 1  # the device's generator is seeded before each step
        elif is_first:
            self._limit_steps_per_replay(batch.inputs)
        if is_first and self.replica and self.replica.has_idle_parameters:
            self._refuse("each step searches for parameters that have no gradient")
        if self.warm_up_left:
            return losses
        lines = [line for line in lines if not line.startswith(_WAITS_ONLY_IF_EAGER)]
        if lines:
            self._refuse(f"a step makes the host wait for the device ({lines[0]})")
        self._agree()
        return losses

    def _limit_steps_per_replay(self, inputs: Tensor) -> None:
        """Let no more steps wait than memory allows, and losses be read two replays later.

        All ranks find the same number, although the shares of some are an image smaller.
        """
        share = math.ceil(self.images / self.world.size)
        step_bytes = share * math.prod(inputs.shape[1:]) * inputs.element_size()
        fitting = _MAX_WAITING_BYTES // max(1, step_bytes)
        self.steps_per_replay = max(1, min(self.steps_per_replay, fitting))
        self.losses.lag = max(self.losses.lag, 2 * self.steps_per_replay)

    def _agree(self) -> None:
        """Have all ranks replay equally many steps, or none if one of them cannot."""
        self.world.count_sync()
        mine = torch.tensor([float(bool(self.refused)), float(self.steps_per_replay == 1)])
        refusing, alone = self.world.all_reduce(mine).tolist()
        if alone:
            self.steps_per_replay = 1
        if refusing and not self.refused:
            self._refuse("another rank cannot record its steps")

    def _refuse(self, reason: str) -> None:
        if not self.refused:
            self.refused, self.recording = reason, None
            self.listener.graph_refused(reason)

    def _halve(self) -> None:
        super()._halve()
        self._refuse("memory ran out")

    def _record_loss(self, loss: Tensor) -> None:
        if self.spoiled is not None:
            torch.maximum(self.spoiled, 1 - loss.isfinite().float(), out=self.spoiled)
            if self.replica:
                self.world.all_reduce(self.spoiled).clamp_(max=1)
        if self.recorded_loss is None:
            super()._record_loss(loss)
        else:
            self.recorded_loss.copy_(loss)

    def _update(self) -> None:
        optimizer: Any = self.optimizer
        if self.spoiled is not None:
            optimizer.found_inf = self.spoiled
        try:
            super()._update()
        finally:
            if self.spoiled is not None:
                del optimizer.found_inf

    def _set_learning_rates(self, learning_rates: list[Any]) -> None:
        for group, rate in zip(self.optimizer.param_groups, learning_rates, strict=True):
            group["lr"] = rate

    # Together

    @property
    def _warm_up_steps(self) -> int:
        return _WARM_UP_STEPS_OF_RANKS if self.replica else _WARM_UP_STEPS

    @property
    def _variant(self) -> tuple[str, int]:
        return self.precision, self.accumulate

    def _replay(self) -> list[float]:
        if self.recording is None:
            self._record()
        if self.recording is None:
            return self._catch_up()
        waiting, self.waiting = self.waiting, []
        self.losses.push(self.recording.replay(waiting))
        return self.losses.ready()

    def _record(self) -> None:
        groups = self.optimizer.param_groups
        learning_rates = [group["lr"] for group in groups]
        try:
            stream = (
                self.replica.stream if self.replica else module_of(self.device).Stream(self.device)
            )
            self.recording = Recording(
                self.waiting, groups, self.device, self._record_step, self._variant, stream
            )
            self.world.recordings.add(self.recording)
        except RuntimeError as error:  # torch raises it for many reasons
            self._refuse(_first_cause(error))
        finally:
            self.recorded_loss = None
            self._set_learning_rates(learning_rates)
        self._agree()
        if self.refused:
            self.optimizer.zero_grad(set_to_none=True)
            self._renew_scaler()
            if self.replica:
                self.replica.rewrap()
            release_cached_memory(self.device)

    def _record_step(
        self,
        inputs: Tensor,
        targets: Tensor,
        global_labels: Tensor | None,
        learning_rates: list[Tensor],
        loss: Tensor,
    ) -> None:
        """Compute a step while it is recorded, and write its loss to a tensor."""
        self.recorded_loss = loss
        self._set_learning_rates(learning_rates)
        self._compute_gradients(inputs, targets, global_labels)
        self._update()

    def _renew_scaler(self) -> None:
        """Replace the scaler by one without what an unfinished step has left in it."""
        state = self.scaler.state_dict()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.scaler.is_enabled())
        self.scaler.load_state_dict(state)


def choose_steps_per_replay(steps_per_epoch: int) -> int:
    """Return how many steps to replay at once so that an epoch takes the fewest launches.

    The steps left at the end of an epoch are made one by one.
    """

    def count_launches(steps_per_replay: int) -> int:
        replays, left = divmod(steps_per_epoch, steps_per_replay)
        return _LAUNCHES_PER_REPLAY * replays + _LAUNCHES_PER_STEP * left

    return min(range(1, MAX_STEPS_PER_REPLAY + 1), key=count_launches)


def _first_cause(error: BaseException) -> str:
    while error.__context__ is not None:
        error = error.__context__
    return str(error).splitlines()[0]


def _columns(batches: list[StepBatch]) -> list[list[Tensor]]:
    """Return all inputs, all targets and all global labels, if there are any."""
    columns = zip(*(batch[:3] for batch in batches), strict=True)
    return [list(column) for column in columns if column[0] is not None]


@contextmanager
def _capturable(groups: list[dict[str, Any]]) -> Iterator[None]:
    """Make optimizers capturable in a block; torch's fused ones compute the same either way."""
    capturable = [group for group in groups if "capturable" in group]
    former = [group["capturable"] for group in capturable]
    for group in capturable:
        group["capturable"] = True
    try:
        yield
    finally:
        for group, value in zip(capturable, former, strict=True):
            group["capturable"] = value


@contextmanager
def watch_random_numbers(device: torch.device) -> Iterator[dict[str, bool]]:
    """Find out whether a block draws random numbers on the "device" and on the "host"."""
    on_device = module_of(device).default_generators[device.index or 0]
    on_host = torch.default_generator
    before, before_on_host = on_device.get_state(), on_host.get_state()
    before_in_python = random.getstate()
    drawn: dict[str, bool] = {}
    yield drawn
    drawn["device"] = not before.equal(on_device.get_state())
    drawn["host"] = random.getstate() != before_in_python or (
        on_host is not on_device and not before_on_host.equal(on_host.get_state())
    )


_WAIT_WARNING = "called a synchronizing"
_MODE_WARNING = "Synchronization debug mode"


@contextmanager
def watch_waits(device: torch.device) -> Iterator[list[str]]:
    """Collect where a block makes the host wait for the device, as FILE:LINE."""
    module = module_of(device)
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            module.set_sync_debug_mode("default")
    for warning in caught:
        if str(warning.message).startswith(_WAIT_WARNING):
            found.append(f"{warning.filename}:{warning.lineno}")
        elif not str(warning.message).startswith(_MODE_WARNING):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
