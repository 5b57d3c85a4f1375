"""Training steps recorded once as a CUDA graph and replayed: one launch instead of dozens.

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
_WARM_UP_STEPS_OF_RANKS = 11  # torch's own number: DistributedDataParallel measures the first ten
MOST_TOGETHER = 8
_OF_A_REPLAY, _OF_A_STEP = 5, 50  # launches, about: what a replay and a step by itself cost
_WAITS_ONLY_IF_EAGER = _functions.__file__  # SyncBatchNorm, which does not while it is recorded
_MOST_WAITING_BYTES = 64 << 20  # of the inputs of steps that are replayed together


# Does the work of one step: inputs, targets, labels of the whole batch, the groups' learning rates,
# a place for the loss.
RecordOne = Callable[[Tensor, Tensor, Tensor | None, list[Tensor], Tensor], None]


class StepBatch(NamedTuple):
    """What a step is made from; rates: the learning rate of each group of the optimizer.

    global_labels: those of the whole batch, if the others are this rank's share of it.
    """

    inputs: Tensor
    targets: Tensor
    global_labels: Tensor | None
    rates: list[float]


class Recording:
    """Records one step for each of the batches, which are only looked at for their shapes.

    way: how the steps are computed, for comparison; stream: where they are recorded. Raises
    RuntimeError if that cannot be recorded.
    """

    def __init__(
        self,
        like: list[StepBatch],
        groups: list[dict[str, Any]],
        device: torch.device,
        record_one: RecordOne,
        way: tuple[str, int],
        stream: Any,
    ) -> None:
        self.way = way
        self.batches = [
            StepBatch(
                one.inputs.clone(),
                one.targets.clone(),
                None if one.global_labels is None else one.global_labels.clone(),
                one.rates,
            )
            for one in like
        ]
        self.rates = torch.zeros(len(like), len(groups), device=device)
        self.losses = torch.zeros(len(like), device=device)
        module = module_of(device)
        self.graph = module.CUDAGraph()
        # Other threads may call what must not be called here: batches are decoded meanwhile.
        options = {"stream": stream, "capture_error_mode": "thread_local"}
        places = zip(self.batches, self.rates, self.losses, strict=True)
        with _capturable(groups), module.graph(self.graph, **options):
            for batch, rates, loss in places:
                record_one(*batch[:3], list(rates), loss)

    def replay(self, batches: list[StepBatch]) -> Tensor:
        """Make the steps of these batches; returns their losses (N,), valid until the next."""
        for places, given in zip(_columns(self.batches), _columns(batches), strict=True):
            torch._foreach_copy_(places, given)
        rates = torch.tensor([one.rates for one in batches]).pin_memory()
        self.rates.copy_(rates, non_blocking=True)
        self.graph.replay()
        return self.losses

    def reset(self) -> None:
        """Free the graph."""
        self.graph.reset()


class GraphedStep(Step):
    """A step for full batches of one shape, several of them replayed at once.

    The first steps and those of other shapes are made one by one; so are all if the network cannot
    be recorded, of which the listener hears. Once a loss is not finite, no step
    changes the weights, except in fp16, where the gradients' scale decides on each step alone.

    With several ranks, all replay the same steps or none does, and a loss that is not finite on one
    of them stops all.

    images: those of a full batch, over all ranks; together: steps to replay at once, as
    `choose_together` says, or 1 if something is done after each.
    """

    def __init__(self, *args: Any, images: int, together: int, **named: Any) -> None:
        super().__init__(*args, **named)
        self.images = images
        self.together = together
        self.warm_up_left = self._warm_up_steps
        self.waiting: list[StepBatch] = []
        self.recording: Recording | None = None
        self.place_of_loss: Tensor | None = None  # of the step that is being recorded
        # 1 once a loss was not finite: the optimizer then changes nothing.
        self.spoiled = None if self.scaler.is_enabled() else torch.zeros((), device=self.device)
        self.losses.lag = max(self.losses.lag, 2 * together)

    def __call__(
        self, inputs: Tensor, targets: Tensor, global_labels: Tensor | None = None
    ) -> list[float]:
        """As of `Step`; the update may be made later, together with those of the next steps."""
        rates = [float(np.float32(group["lr"])) for group in self.optimizer.param_groups]
        labels = global_labels if self.replica else None
        batch = StepBatch(inputs, targets, labels, rates)
        if self.recording is not None and self.recording.way != self._way:
            self.recording, self.warm_up_left = None, self._warm_up_steps
        # Of ranks, some may have as many images as ever when the whole batch has fewer.
        is_full = len(inputs if labels is None else labels) == self.images
        if is_full and self.warm_up_left:
            return self._warm_up(batch)
        self.waiting.append(batch)
        if self.refused or not is_full:
            return self._catch_up()
        return self._replay() if len(self.waiting) == self.together else self.losses.ready()

    @property
    def guards_weights(self) -> bool:
        """As of `Step`."""
        return self.spoiled is not None

    def expect(self, images: int) -> None:
        """As of `Step`."""
        super().expect(images)
        self.images = images

    def flush(self) -> list[float]:
        """As of `Step`, after the updates that are still to be made."""
        return [*self._catch_up(), *super().flush()]

    # one by one

    def _make(self, batch: StepBatch) -> list[float]:
        self._set_rates(batch.rates)
        with self.replica.on_stream() if self.replica else nullcontext():
            return super().__call__(batch.inputs, batch.targets, batch.global_labels)

    def _catch_up(self) -> list[float]:
        """Make the steps that wait for others, which will not come."""
        known = []
        while self.waiting:
            batch = self.waiting.pop(0)
            try:
                known += self._make(batch)
            except NonFiniteStepError as error:
                error.steps_ago += len(self.waiting)  # they were begun, too
                raise
        return known

    def _warm_up(self, batch: StepBatch) -> list[float]:
        """Make a step, and find out whether such steps can be recorded."""
        self.warm_up_left -= 1
        is_first = self.warm_up_left == self._warm_up_steps - 1
        with random_numbers(self.device) as drawn, waits(self.device) as lines:
            losses = self._make(batch)
        if drawn["host"]:
            self._refuse("the network draws random numbers on the host")
        if drawn["device"]:
            self.together = 1  # its generator is seeded before each step
        elif is_first:
            self._limit(batch.inputs)
        if is_first and self.replica and self.replica.has_idle_parameters:
            self._refuse("the ranks look for parameters without a gradient in each step")
        if self.warm_up_left:
            return losses
        lines = [line for line in lines if not line.startswith(_WAITS_ONLY_IF_EAGER)]
        if lines:
            self._refuse(f"a step makes the host wait for the device ({lines[0]})")
        self._agree()
        return losses

    def _limit(self, like: Tensor) -> None:
        """Let no more steps wait than there is room for, and losses be read after two replays.

        Every rank finds the same number, though some have one image less.
        """
        share = math.ceil(self.images / self.world.size)
        fit = _MOST_WAITING_BYTES // max(1, share * math.prod(like.shape[1:]) * like.element_size())
        self.together = max(1, min(self.together, fit))
        self.losses.lag = max(self.losses.lag, 2 * self.together)

    def _agree(self) -> None:
        """Let all ranks replay steps or none, and one by one if one of them has to."""
        self.world.count_sync()
        mine = torch.tensor([float(bool(self.refused)), float(self.together == 1)])
        refusing, alone = self.world.all_reduce(mine).tolist()
        if alone:
            self.together = 1
        if refusing and not self.refused:
            self._refuse("another rank cannot record its steps")

    def _refuse(self, reason: str) -> None:
        if not self.refused:
            self.refused, self.recording = reason, None
            self.listener.graph_refused(reason)

    def _halve(self) -> None:
        super()._halve()
        self._refuse("memory ran out")

    def _take_loss(self, loss: Tensor) -> None:
        if self.spoiled is not None:
            torch.maximum(self.spoiled, 1 - loss.isfinite().float(), out=self.spoiled)
            if self.replica:
                self.world.all_reduce(self.spoiled).clamp_(max=1)
        if self.place_of_loss is None:
            super()._take_loss(loss)
        else:
            self.place_of_loss.copy_(loss)

    def _update(self) -> None:
        optimizer: Any = self.optimizer
        if self.spoiled is not None:
            optimizer.found_inf = self.spoiled
        try:
            super()._update()
        finally:
            if self.spoiled is not None:
                del optimizer.found_inf

    def _set_rates(self, rates: list[Any]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    # together

    @property
    def _warm_up_steps(self) -> int:
        return _WARM_UP_STEPS_OF_RANKS if self.replica else _WARM_UP_STEPS

    @property
    def _way(self) -> tuple[str, int]:
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
        rates = [group["lr"] for group in groups]
        try:
            self.recording = Recording(
                self.waiting, groups, self.device, self._record_one, self._way, self._stream()
            )
            self.world.recordings.add(self.recording)
        except RuntimeError as error:  # of torch, which has many ways to say that it cannot
            self._refuse(_first_cause(error))
        finally:
            self.place_of_loss = None
            self._set_rates(rates)
        self._agree()
        if self.refused:
            self.optimizer.zero_grad(set_to_none=True)
            self._renew_scaler()
            if self.replica:
                self.replica.renew()
            release_cached_memory(self.device)

    def _stream(self) -> Any:
        """Where to record."""
        return self.replica.stream if self.replica else module_of(self.device).Stream(self.device)

    def _record_one(
        self,
        inputs: Tensor,
        targets: Tensor,
        global_labels: Tensor | None,
        rates: list[Tensor],
        loss: Tensor,
    ) -> None:
        """Do the work of one step, while it is recorded. loss: where the step's loss goes."""
        self.place_of_loss = loss
        self._set_rates(rates)
        self._try(inputs, targets, global_labels)
        self._update()

    def _renew_scaler(self) -> None:
        """Free the scaler from what a step that broke off has left in it."""
        state = self.scaler.state_dict()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.scaler.is_enabled())
        self.scaler.load_state_dict(state)


def choose_together(steps: int) -> int:
    """How many of an epoch's full batches to replay at once, for the fewest launches.

    Those left at its end are made one by one. steps: full batches of an epoch.
    """

    def launches(together: int) -> int:
        return _OF_A_REPLAY * (steps // together) + _OF_A_STEP * (steps % together)

    return min(range(1, MOST_TOGETHER + 1), key=launches)


def _first_cause(error: BaseException) -> str:
    while error.__context__ is not None:
        error = error.__context__
    return str(error).splitlines()[0]


def _columns(batches: list[StepBatch]) -> list[list[Tensor]]:
    """All inputs, all targets and, if there are any, all labels of the whole batches."""
    columns = zip(*(one[:3] for one in batches), strict=True)
    return [list(column) for column in columns if column[0] is not None]


@contextmanager
def _capturable(groups: list[dict[str, Any]]) -> Iterator[None]:
    """Let optimizers be recorded that ask for it; fused ones compute the same either way."""
    asking = [group for group in groups if "capturable" in group]
    former = [group["capturable"] for group in asking]
    for group in asking:
        group["capturable"] = True
    try:
        yield
    finally:
        for group, value in zip(asking, former, strict=True):
            group["capturable"] = value


_OF_A_WAIT = "called a synchronizing"
_OF_THE_MODE = "Synchronization debug mode"


@contextmanager
def random_numbers(device: torch.device) -> Iterator[dict[str, bool]]:
    """Whether the block draws random numbers, on the device and on the host."""
    of_device = module_of(device).default_generators[device.index or 0]
    of_host = torch.default_generator
    before, before_on_host, before_in_python = (
        of_device.get_state(),
        of_host.get_state(),
        random.getstate(),
    )
    drawn: dict[str, bool] = {}
    yield drawn
    drawn["device"] = not before.equal(of_device.get_state())
    drawn["host"] = random.getstate() != before_in_python or (
        of_host is not of_device and not before_on_host.equal(of_host.get_state())
    )


@contextmanager
def waits(device: torch.device) -> Iterator[list[str]]:
    """The places, FILE:LINE, where the block makes the host wait for the device, as torch warns."""
    module = module_of(device)
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            module.set_sync_debug_mode("default")
    for one in caught:
        if str(one.message).startswith(_OF_A_WAIT):
            found.append(f"{one.filename}:{one.lineno}")
        elif not str(one.message).startswith(_OF_THE_MODE):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
