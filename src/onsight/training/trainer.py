"""The training loop, in segments between two decisions of a pacer."""

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from onsight.data.loader import Batch, Loader
from onsight.errors import ConfigError, Interrupted, NonFiniteLoss, NothingAdded
from onsight.evaluation.predictions import (
    HeldOutLogits,
    PredictionTable,
    evaluate_batches,
    held_out_logits,
)
from onsight.evaluation.results import EpochRow
from onsight.models.classifier import Classifier
from onsight.ranks.ddp import gather_per_image
from onsight.step.calibrate import recalibrate_norms
from onsight.step.deferred_losses import NonFiniteStepError
from onsight.step.update import Update
from onsight.text import resume_hint
from onsight.training.checkpoint import Checkpoint, OtherCheckpoint
from onsight.training.decisions import COUNT
from onsight.training.finite_check import FiniteCheck
from onsight.training.listener import Listener, name_accumulate_decision
from onsight.training.pacers import Pacer, Segment
from onsight.training.progress import (
    Progress,
    add_evaluations,
    compute_split_metrics,
    make_epoch_row,
)
from onsight.training.saving import Checkpoints

_JUDGED_AT = 0.5  # of the schedule: the first validation from there on


@dataclass(frozen=True)
class TrainerData:
    """What a network is trained on, and evaluated on meanwhile."""

    loader: Loader  # of training batches
    watched: Mapping[str, Loader]  # of the splits that are evaluated, by name
    seed: int  # of the order of the training images
    name_images: Callable[[Batch], str]  # returns the names of a batch's images, for messages
    # During so many steps, batch norm statistics are recomputed before each evaluation.
    recalibrated_steps: float = 0


class Trainer:
    """Trains one network.

    Args:
        update: Makes one training step from a batch.
        classifier: The network as it is evaluated: with averaged weights, if there are any.
        data: The batches to train on, and the images to evaluate.
        pacer: Decides how far to train and when to evaluate.
        checkpoints: Where training is saved.
        listener: Is told of every step and epoch.
        judge: Is asked once, halfway, why training should end; empty to go on.
    """

    def __init__(
        self,
        update: Update,
        classifier: Classifier,
        data: TrainerData,
        pacer: Pacer,
        checkpoints: Checkpoints,
        listener: Listener,
        judge: Callable[[HeldOutLogits], str] = lambda rows: "",
    ) -> None:
        self.update = update
        self.classifier = classifier
        self.data = data
        self.pacer = pacer
        self.checkpoints = checkpoints
        self.listener = listener
        self.judge = judge
        self.world = update.step.world
        self.progress = Progress()
        self.best_validation: PredictionTable | None = None  # not known again after a resume
        self.finite = FiniteCheck(
            update.step, data.loader, data.seed, data.name_images, checkpoints.folder.checkpoints
        )
        self._batches: Iterator[Batch] | None = None  # of the current epoch
        self._pending_images: deque[int] = deque()  # of the steps whose loss is not yet known
        self._recorded_parts: dict[str, int] = {}  # of batches, by step; memory ran out there
        self._is_over = False

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. Raises OtherCheckpoint."""
        checkpoint.restore(self.update.step, self.update.average)
        self.progress = checkpoint.run.progress
        if self.progress.step > self.data.loader.steps:
            raise OtherCheckpoint(
                f"{checkpoint.path} is no checkpoint of this run: it is after step "
                f"{self.progress.step}, but an epoch has {self.data.loader.steps} steps"
            )
        self.update.done = self.progress.steps_done
        self.update.step.accumulate = self.progress.accumulate or self.update.step.accumulate

    def begin(self, start: EpochRow | None = None) -> None:
        """Start or go on with training.

        Args:
            start: How good the network is before the first step, which training must improve on.
        """
        self._recorded_parts = self.checkpoints.decisions.named("accumulate", COUNT)
        self.listener.training_started(self.progress)
        if start:
            self.progress.add_row(start)
            self.listener.epoch_finished(start)
            self._keep_best(start)

    def run(self) -> Progress:
        """Train to the end. Raises Interrupted after a checkpoint, or NonFiniteLoss."""
        now = self.progress
        try:
            while segment := self.pacer.next_segment(now):
                self._train(segment)
                self._end_segment(segment)
            if now.step:
                self._end_epoch(0)
                self._save()
        finally:
            self.listener.closed()
        self._is_over = True
        if not now.rows:
            self.listener.nothing_trained()
            self._save_best()
        return now

    def finish(self) -> None:
        """Wait until everything is saved. Raises Interrupted after a signal."""
        self.checkpoints.wait()
        self.world.all_reduce_async(0.0)()  # tells all ranks of a request since the last step
        self._stop_if_asked()
        self.checkpoints.remove_previous()

    def evaluate(self, split: str, images: int) -> PredictionTable:
        """Return the predictions for the first images of a split, a fair sample of it."""
        loader = self.data.watched[split]
        loader = replace(loader, ids=loader.ids[:images])
        what = f"validating after epoch {self.progress.epoch + 1}"
        begun = time.perf_counter()
        batches = self.world.report_each(loader.in_order(), what)
        part = evaluate_batches(self._classify, batches)
        table = gather_per_image(part, loader.ids, self.world)
        self.progress.validation_seconds += time.perf_counter() - begun
        return table

    def keep_if_better(self, table: PredictionTable) -> bool:
        """Save the classifier's weights if they validate better than the best so far."""
        return self._keep_best(compute_split_metrics("validation", table), table)

    def _train(self, segment: Segment) -> None:
        """Make the steps of a segment, or fewer if the pacer ends it early."""
        now = self.progress
        if now.step + segment.steps > self.data.loader.steps:
            raise ConfigError(
                f"{self.checkpoints.decisions.path} has been changed: segment "
                f"{now.segments_done} is longer than what is left of its epoch"
            )
        if segment.steps:
            self.listener.segment_started(len(self.data.loader.ids))
        self.update.set_training_mode()
        begun = time.perf_counter()
        for k in range(segment.steps):
            if self.world.poll_first_rank(self.pacer.must_stop()):
                self.pacer.end_early(now)
                break
            batch = self._next_batch()
            now.epoch_wait_seconds += time.perf_counter() - begun
            self._train_step(batch, segment.position + k, segment.total_steps)
            now.add_step(len(batch.global_labels))
            now.schedule_fraction = (segment.position + k + 1) / segment.total_steps
            begun = self._add_seconds(begun)  # the share of waiting is shown after every step
            self.listener.step_finished(len(batch.global_labels))
            if self.listener.should_log_loss(now.step):
                self._flush()
                self.listener.log_loss()
            self._save_if_due()
            begun = self._add_seconds(begun)
        self._flush()  # the work still queued on an accelerator belongs to this segment
        self._add_seconds(begun)
        self.world.reset_poll()

    def _add_seconds(self, begun: float) -> float:
        """Count the time since then towards the epoch, and return the time now."""
        ended = time.perf_counter()
        self.progress.epoch_seconds += ended - begun
        return ended

    def _train_step(self, batch: Batch, position: int, total_steps: int) -> None:
        now = self.progress
        if self._recorded_parts:
            parts = self._recorded_parts.get(name_accumulate_decision(now.epoch, now.step))
            if parts:
                self.update.step.accumulate = now.accumulate = parts
        self.update.set_learning_rate(position, total_steps)
        self._pending_images.append(len(batch.global_labels))
        self.world.report_activity(f"in epoch {now.epoch + 1}, step {now.step + 1}")
        try:
            self._read(self.update(batch, now.epoch, now.step))
        except NonFiniteStepError as error:
            raise NonFiniteLoss(self.finite.explain(error, now.epoch, now.step)) from error

    def _next_batch(self) -> Batch:
        if self._batches is None:  # stays open until the epoch ends, over several segments
            now = self.progress
            self._batches = self.data.loader.epoch(self.data.seed, now.epoch, now.step)
        return next(self._batches)

    def _read(self, losses: list[float]) -> None:
        for loss in losses:
            self.progress.add_loss(loss, self._pending_images.popleft())

    def _flush(self) -> None:
        """Wait until every loss is known. Raises NonFiniteLoss."""
        now = self.progress
        try:
            self._read(self.update.step.flush())
        except NonFiniteStepError as error:
            raise NonFiniteLoss(self.finite.explain(error, now.epoch, now.step - 1)) from error

    def _end_segment(self, segment: Segment) -> None:
        now = self.progress
        ends_epoch = now.step == self.data.loader.steps or segment.evaluate > 0
        if ends_epoch:
            self._end_epoch(segment.evaluate)
        now.segments_done += 1
        now.steps_in_segment = 0
        if ends_epoch:
            self._save()

    def _end_epoch(self, images: int) -> None:
        """Evaluate a number of images of each watched split; keep the row and the best weights."""
        now = self.progress
        before = now.validation_seconds
        if images or now.best_accuracy < 0:  # otherwise these weights are not kept
            self._recalibrate_norms()
        tables = {name: self.evaluate(name, images) for name in self.data.watched}
        if images:
            now.last_evaluation_seconds = now.validation_seconds - before
            now.steps_at_evaluation = now.steps_done
        if now.step:
            rate = self.update.step.optimizer.param_groups[0]["lr"]
            row = make_epoch_row(now, tables, rate, self.checkpoints.folder.checkpoints)
            now.close_epoch()
            self._batches = None
        else:  # the last epoch ended without an evaluation, as more seemed to follow
            row = add_evaluations(now.rows[-1], tables)
        now.add_row(row)
        self.listener.epoch_finished(row)
        self.checkpoints.save_epoch(self.classifier, row)
        self._keep_best(row, tables["validation"])
        if images and not now.is_judged and now.schedule_fraction >= _JUDGED_AT:
            now.is_judged = True
            held_out = held_out_logits(tables["validation"])
            if reason := self.world.broadcast("judge", lambda: self.judge(held_out)):
                raise NothingAdded(reason)

    def _recalibrate_norms(self) -> None:
        """Recompute the statistics of batch norms while they lag behind the weights."""
        now, loader = self.progress, self.data.loader
        if now.steps_done < self.data.recalibrated_steps:
            begun = time.perf_counter()
            with self.world.watchdog_paused():  # every rank computes the same, in its own time
                recalibrate_norms(self.classifier, loader.images, loader.ids)
            now.validation_seconds += time.perf_counter() - begun

    def _keep_best(self, row: Mapping[str, Any], table: PredictionTable | None = None) -> bool:
        """Save the weights unless earlier ones validated better; always without validation.

        Returns whether they were saved.
        """
        now = self.progress
        accuracy, loss = row["validation_accuracy"], row["validation_loss"]
        if accuracy is not None and loss is not None:
            if (accuracy, -loss) <= (now.best_accuracy, -now.best_loss):
                return False
            now.best_accuracy, now.best_loss = accuracy, loss
        elif now.best_accuracy >= 0:  # no time was left to compare
            return False
        now.best_epoch = now.epoch
        self.best_validation = table
        self._save_best()
        return True

    def _save_best(self) -> None:
        self.finite.refuse_spoiled_weights(self.progress)
        self.checkpoints.save_best(self.classifier, self.best_validation)

    def _save_if_due(self) -> None:
        """Save when asked to stop, and now and then in a long epoch."""
        self._stop_if_asked()
        if self.checkpoints.is_due(self.progress.step):
            self._save()

    def _classify(self, images: Tensor) -> Tensor:
        """Return the logits of a batch, unless the run is to stop."""
        self._stop_if_asked()
        return self.classifier(images)

    def _stop_if_asked(self) -> None:
        """Save the steps made, and raise Interrupted, if a signal has arrived."""
        if self.world.stopping:
            if not self._is_over:  # else all steps are saved, and weights may be interpolated
                self._save()
            self.checkpoints.wait()
            now, steps = self.progress, self.data.loader.steps
            where = f"in epoch {now.epoch + 1} after {now.step} of {steps} steps"
            if self._is_over:
                where = "after the last epoch, before the results"
            raise Interrupted(
                f"stopped {where}; a checkpoint was written: "
                f"{resume_hint(self.checkpoints.folder.out)}",
                self.world.stop.signal_number or signal.SIGTERM,
            )

    def _save(self) -> None:
        self._flush()  # weights that a bad loss has spoiled must not replace good ones
        self.finite.refuse_spoiled_weights(self.progress)
        self.checkpoints.save(self.update, self.progress)
