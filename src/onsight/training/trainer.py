"""The trainer: decides when to step, evaluate, save and stop."""

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from onsight.config import Config, Switch
from onsight.data.loader import Batch, Loader
from onsight.errors import DataError, Interrupted, NonFiniteLoss
from onsight.evaluation.predictions import PredictionTable, evaluate_batches
from onsight.evaluation.results import EpochRow
from onsight.models.classifier import Classifier
from onsight.models.head import set_training_mode
from onsight.ranks.ddp import gather_per_image
from onsight.report.console import Reporter
from onsight.step.deferred_losses import NonFiniteStepError
from onsight.step.optim import learning_rate_factor, set_learning_rate
from onsight.step.update import Update
from onsight.text import fixed_percent, percent
from onsight.training.checkpoint import snapshot, snapshot_weights
from onsight.training.finite_check import FiniteCheck
from onsight.training.interpolation import SHARES, Blends
from onsight.training.loggers.loggers import Loggers
from onsight.training.placement_check import PlacementCheck
from onsight.training.progress import Progress, Record, epoch_line, epoch_row, split_facts
from onsight.training.run_folder import RunFolder
from onsight.training.saving import CheckpointWriter, Saves
from onsight.training.timely import evaluate_in_time, shortened
from onsight.tune.budget import Budget


class Trainer:
    """Runs the epochs of a run, from its start or from its last checkpoint."""

    def __init__(
        self,
        config: Config,
        update: Update,
        classifier: Classifier,
        loader: Loader,
        watched: dict[str, Loader],
        *,
        name_images: Callable[[Batch], str],
        keep_epoch: Callable[[int, EpochRow], None],
        keep_switch: Callable[[Switch, str], None],
        folder: RunFolder,
        loggers: Loggers,
        data_key: str,
        reporter: Reporter,
        budget: Budget | None = None,
        writer: CheckpointWriter | None = None,
    ) -> None:
        # what it works with
        self.config = config
        self.update = update
        self.step = update.step
        self.classifier = classifier
        self.loader = loader
        self.watched = watched
        # where it reports and saves
        self.world = update.step.world
        self.keep_epoch = keep_epoch
        self.keep_switch = keep_switch
        self.folder = folder
        self.loggers = loggers
        self.data_key = data_key
        self.reporter = reporter
        self.budget = budget
        self.placement = PlacementCheck(update, folder, reporter)
        self.blends = Blends(folder.start_weights)
        self.writer = writer or CheckpointWriter()
        self.saves = Saves(folder, self.writer, self.world, reporter)
        # how far it has come
        self.progress = Progress()
        self.finite = FiniteCheck(self.step, loader, config.seed, name_images, folder.checkpoints)
        self.pending_images: deque[int] = deque()  # of the steps whose loss is not yet known
        self.record: Record | None = None
        self.switches = deque(config.switches)  # those still to come
        self.step.on_halved = self._on_halved
        self.step.on_refused = self._on_refused

    def resume(self) -> None:
        """Continue from the folder's last checkpoint. Raises DataError if the data changed."""
        self.world.check_equal("checkpoint", str(self.folder.last_checkpoint.exists()))
        if not self.folder.last_checkpoint.exists():
            return  # stopped before its first checkpoint: start from the beginning
        facts = self.saves.load(self.step, self.update.average)
        if facts.pop("data_key") != self.data_key:
            raise DataError(
                f"the images changed since the run in {self.folder.to_resume} began; "
                "start a new run, or restore the original images"
            )
        self.progress = now = Progress(**facts)
        self.update.done = self._steps_done
        if self.budget:
            self.budget.resume(now.training_seconds + now.validation_seconds + now.epoch_seconds)
        self.reporter.say(f"resumed: epoch {now.epoch + 1}, after {now.step} of its steps")

    def _settle_into_budget(self, budget: Budget) -> None:
        """Keep the time that saving will take at the end; validate on no more than fits."""
        self.watched = {name: shortened(loader, budget) for name, loader in self.watched.items()}
        budget.look()
        before = budget.now
        self._save()
        self.saves.wait()
        budget.look()
        budget.saved(budget.now - before)

    def run(self, start: EpochRow | None = None) -> Progress:
        """Train to the end. Raises Interrupted after a checkpoint, or NonFiniteLoss.

        start: how good the network is before the first step, which training must improve on.
        """
        with self.writer:
            return self._run(start)

    def _run(self, start: EpochRow | None) -> Progress:
        if self.world.is_main:
            done = self._steps_done
            self.record = Record(self.folder.path, self.progress.rows, done, self.loggers)
        if self.budget:
            self._settle_into_budget(self.budget)
        if start:
            self._begin_from(start)
        while not (self._is_over or self._out_of_patience()):
            self._train_epoch()
            self._end_epoch()
        self._try_blends()
        if not (start or self.progress.best_epoch or self.progress.best_accuracy >= 0):
            self.reporter.warn("there was no time for a single step: the model has not learned")
            self._save_best()
        self.saves.wait()
        self.world.all_reduce_async(0.0)()  # tells all ranks of a request since the last step
        self._stop_if_asked()
        self.saves.drop_former()
        return self.progress

    def _begin_from(self, start: EpochRow) -> None:
        if self.record:
            self.record.add(start)
        self._keep_best(start)
        if self.world.is_main:
            self.blends.keep_start(self.classifier.net)
        if self.budget:
            self.budget.keep_validations(len(SHARES))

    def _try_blends(self) -> None:
        """Keep a network between the first and the last if it validates better than both."""
        now = self.progress
        self.world.broadcast("first weights", str)  # the first rank has written them by now
        if not self.blends.are_open or now.epoch == 0 or now.best_accuracy < 0:
            return
        if self.budget and not self.budget.give_back_validations():
            return
        begun = time.perf_counter()
        loader = self.watched["validation"]
        for part in self.blends.of(self.classifier.net):
            per_image = self._evaluate(loader, self.classifier)
            in_time = len(per_image) == len(loader.ids)
            if in_time and self._keep_best(split_facts("validation", per_image)):
                now.best_blend = part
        now.validation_seconds += time.perf_counter() - begun
        if now.best_blend < 1:
            self.reporter.say(
                f"blend: {percent(now.best_blend)} of the way from the head's network to the last "
                f"epoch's validates best, {fixed_percent(now.best_accuracy)}"
            )

    @property
    def _is_over(self) -> bool:
        if self.budget:
            self.budget.look()
            return self.budget.is_over()
        return self.progress.epoch >= self.config.epochs

    def _train_epoch(self) -> None:
        set_training_mode(self.step.model, self.config.norm_statistics == "frozen")
        now = self.progress
        title = f"epoch {now.epoch + 1}" + ("" if self.budget else f"/{self.config.epochs}")
        with self.reporter.bar(title, len(self.loader.ids)) as bar:
            bar.done = now.epoch_images
            asked = time.perf_counter()
            for batch in self.loader.epoch(self.config.seed, now.epoch, now.step):
                now.epoch_wait_seconds += time.perf_counter() - asked
                self._train_step(batch)
                now.count(len(batch.global_labels))
                bar.advance(len(batch.global_labels), self._facts)
                self._tell_line()
                self._save_if_due()
                ended = time.perf_counter()
                now.epoch_seconds += ended - asked
                asked = ended
                if self.budget and self._is_late(self.budget):
                    break
            self._flush()  # work still queued on an accelerator belongs to this epoch
            now.epoch_seconds += time.perf_counter() - asked

    def _is_late(self, budget: Budget) -> bool:
        """Whether another step, after those that an accelerator still computes, would not fit."""
        budget.step_done()
        return budget.is_over(1 + self.step.losses.lag)

    def _train_step(self, batch: Batch) -> None:
        now, config = self.progress, self.config
        while self.switches and (self.switches[0].epoch, self.switches[0].step) <= (
            now.epoch,
            now.step,
        ):
            self._switch(self.switches.popleft())
        set_learning_rate(self.step.optimizer, config.learning_rate, self._rate_factor())
        self.pending_images.append(len(batch.global_labels))
        self.world.does(f"in epoch {now.epoch + 1}, step {now.step + 1}")
        update = self.update if self.placement.is_done else self.placement.first_update
        try:
            self._read(update(batch, now.epoch, now.step))
        except NonFiniteStepError as error:
            raise NonFiniteLoss(self.finite.explain(error, now.epoch, now.step)) from error

    def _switch(self, switch: Switch) -> None:
        torch.set_num_threads(switch.threads)
        self.step.precision = self.classifier.precision = switch.precision
        self.step.accumulate = switch.accumulate

    def _on_halved(self, parts: int) -> None:
        """Memory ran out: report and record that batches are computed in more parts from now on."""
        now = self.progress
        self.reporter.warn(
            f"out of memory: each batch is now computed in {parts} parts, with the same update "
            "(but batch norm sees one part at a time); use --accumulate to start that way"
        )
        switch = Switch(
            epoch=now.epoch,
            step=now.step,
            precision=self.step.precision,
            threads=torch.get_num_threads(),
            accumulate=parts,
        )
        self.keep_switch(switch, "memory ran out with fewer parts")

    def _on_refused(self, reason: str) -> None:
        self.reporter.warn(f"steps are not replayed as a CUDA graph: {reason}")

    def _read(self, losses: list[float]) -> None:
        for loss in losses:
            self.progress.add_loss(loss, self.pending_images.popleft())

    def _flush(self) -> None:
        """Wait until every loss is known. Raises NonFiniteLoss."""
        try:
            self._read(self.step.flush())
        except NonFiniteStepError as error:
            raise NonFiniteLoss(
                self.finite.explain(error, self.progress.epoch, self.progress.step - 1)
            ) from error

    @property
    def _steps_done(self) -> int:
        return self.progress.epoch * self.loader.steps + self.progress.step

    def _rate_factor(self) -> float:
        if self.budget:
            steps = 1_000_000  # fine enough to follow the clock
            warmup = round(steps * self.config.warmup_epochs / self.config.epochs)
            return learning_rate_factor(
                self.config.schedule, int(self.budget.share * steps), steps, warmup
            )
        steps = self.config.epochs * self.loader.steps
        warmup = round(self.config.warmup_epochs * self.loader.steps)
        return learning_rate_factor(self.config.schedule, self._steps_done, steps, warmup)

    def _tell_line(self) -> None:
        """Every log_every_steps steps, report the mean loss since the last such line."""
        steps = self.config.log_every_steps
        if steps and self.progress.step % steps == 0:
            self._flush()
            line = self.progress.close_line(steps)
            if self.record:
                self.record.add_line(line, self._steps_done)
            self.reporter.say(
                f"[{self.progress.epoch + 1}, {line['step']:5d}] loss: {line['loss']:.3f}, "
                f"{line['seconds']:.1f} s"
            )

    def _end_epoch(self) -> None:
        """Evaluate; save the row, the best weights and a checkpoint."""
        now = self.progress
        begun = time.perf_counter()
        judged = {
            name: self._evaluate(loader, self._judge) for name, loader in self.watched.items()
        }
        now.validation_seconds += time.perf_counter() - begun
        rate = self.step.optimizer.param_groups[0]["lr"]
        row = epoch_row(now, judged, rate, self.folder.checkpoints)
        now.close_epoch()
        if self.record:
            self.record.add(row)
            self.keep_epoch(now.epoch, row)
        self._keep_best(row)
        self._save()
        self.reporter.say(epoch_line(row, 0 if self.budget else self.config.epochs))

    def _evaluate(self, loader: Loader, forward: Callable[[Tensor], Tensor]) -> PredictionTable:
        if self.budget:
            return evaluate_in_time(forward, loader, self.budget, self.world)
        what = f"validating after epoch {self.progress.epoch + 1}"
        batches = self.world.follow(loader.in_order(), what)
        return gather_per_image(evaluate_batches(forward, batches), loader.ids, self.world)

    def _judge(self, images: Tensor) -> Tensor:
        """The logits of a batch after an epoch; a request to stop is obeyed before the next."""
        self._stop_if_asked()
        return self.classifier(images)

    def _keep_best(self, row: Mapping[str, Any]) -> bool:
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
        self._save_best()
        return True

    def _save_best(self) -> None:
        self.finite.refuse_spoiled_weights(self.progress)
        self.saves.save_best(lambda: snapshot_weights(self.classifier.net))

    def _out_of_patience(self) -> bool:
        patience = self.config.patience_epochs
        return bool(patience) and self.progress.epoch - self.progress.best_epoch >= patience

    def _save_if_due(self) -> None:
        """Save when asked to stop, and now and then in a long epoch."""
        self._stop_if_asked()
        steps, config = self.progress.step, self.config
        is_due = config.checkpoint_steps and steps % config.checkpoint_steps == 0
        if is_due or self.saves.seconds_ago >= config.checkpoint_seconds:
            self._save()

    def _stop_if_asked(self) -> None:
        """Save and raise Interrupted if a signal has asked for it."""
        if self.world.stopping:
            self._save()
            self.saves.wait()
            now, number = self.progress, self.world.stop.signal_number or signal.SIGTERM
            place = f"in epoch {now.epoch + 1} after {now.step} of {self.loader.steps} steps"
            if not self.budget and self._is_over:
                place = "after the last epoch, before the results"
            raise Interrupted(
                f"stopped {place}; a checkpoint was written: continue with --out "
                f"{self.folder.to_resume} --resume",
                number,
            )

    def _save(self) -> None:
        self._flush()  # weights that a bad loss has spoiled must not replace good ones
        self.finite.refuse_spoiled_weights(self.progress)
        facts = {**asdict(self.progress), "data_key": self.data_key}
        self.saves.save(lambda: snapshot(self.step, self.update.average, facts))

    def _facts(self) -> dict[str, float]:
        """What the progress bar shows."""
        now = self.progress
        facts = {
            "loss": now.mean_loss,
            "waiting for data": now.epoch_wait_seconds / max(1e-9, now.epoch_seconds),
        }
        if now.best_accuracy >= 0:
            facts["best accuracy"] = now.best_accuracy
        return facts
