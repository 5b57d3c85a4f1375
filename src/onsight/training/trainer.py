"""The trainer: says when to step, evaluate, save and stop."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from onsight.config import Config
from onsight.data.augment import Augmentation
from onsight.data.loader import Batch, Loader
from onsight.errors import ConfigError, DataError, Interrupted, NonFiniteLoss
from onsight.evaluation.metrics import share
from onsight.evaluation.outcome import observe
from onsight.models.classifier import Classifier
from onsight.models.freeze import hold_frozen_norms
from onsight.report.console import Bar, Story
from onsight.report.words import fixed_percent
from onsight.training.checkpoint import load_checkpoint, save_checkpoint, save_weights
from onsight.training.ema import MovingAverage
from onsight.training.folder import RunFolder
from onsight.training.optim import learning_rate_factor, set_learning_rate
from onsight.training.record import Record
from onsight.training.signals import StopRequest
from onsight.training.step import NonFiniteStepError, Step

_TOO_FEW_FOR_BATCH_NORM = (
    "batch norm needs more than one value a channel, and one small picture alone gives one: "
    "raise --batch-size, lower --accumulate, or raise --image-size"
)
_CHECKPOINT_SECONDS = 600  # a killed run loses no more than this, however long its epochs


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint keeps beside tensors.

    epoch and step count from 0 and name the next step; the second group is about the
    epoch under way, the third about the whole run.
    """

    epoch: int = 0
    step: int = 0

    epoch_images: int = 0
    epoch_loss: float = 0.0
    epoch_seconds: float = 0.0
    epoch_wait_seconds: float = 0.0

    images: int = 0
    training_seconds: float = 0.0
    wait_seconds: float = 0.0
    validation_seconds: float = 0.0
    best_epoch: int = 0
    best_accuracy: float = -1.0
    best_loss: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def count(self, images: int, loss: float, seconds: float, wait_seconds: float) -> None:
        """Add a step."""
        self.step += 1
        self.epoch_images += images
        self.epoch_loss += loss * images
        self.epoch_seconds += seconds
        self.epoch_wait_seconds += wait_seconds

    def close_epoch(self) -> None:
        """Add the epoch to the run and begin the next."""
        self.images += self.epoch_images
        self.training_seconds += self.epoch_seconds
        self.wait_seconds += self.epoch_wait_seconds
        self.epoch += 1
        self.step = self.epoch_images = 0
        self.epoch_loss = self.epoch_seconds = self.epoch_wait_seconds = 0.0


class Trainer:
    """Runs the epochs of a run, from its start or from its last checkpoint."""

    def __init__(
        self,
        config: Config,
        step: Step,
        average: MovingAverage | None,
        classifier: Classifier,
        augmentation: Augmentation,
        loader: Loader,
        validation: Loader,
        *,
        name_pictures: Callable[[Batch], str],
        classes: int,
        folder: RunFolder,
        data_key: str,
        story: Story,
        stop: StopRequest,
    ) -> None:
        # what it works with
        self.config = config
        self.step = step
        self.average = average
        self.classifier = classifier
        self.augmentation = augmentation
        self.loader = loader
        self.validation = validation
        self.classes = classes
        # where it reports and saves
        self.name_pictures = name_pictures
        self.folder = folder
        self.data_key = data_key
        self.story = story
        self.stop = stop
        # where it stands
        self.progress = Progress()
        self.saved_at = time.monotonic()

    def resume(self) -> None:
        """Go on from the folder's last checkpoint. Raises DataError when the data changed."""
        if not self.folder.last_checkpoint.exists():
            return  # stopped before its first checkpoint: the start is where it stands
        facts = load_checkpoint(self.folder.last_checkpoint, self.step, self.average)
        if facts.pop("data_key") != self.data_key:
            raise DataError(
                f"the pictures changed since the run in {self.folder.path} began; "
                "start a new run, or bring the former pictures back"
            )
        self.progress = Progress(**facts)

    def run(self) -> Progress:
        """Train to the end. Raises Interrupted after a checkpoint, or NonFiniteLoss."""
        record = Record(self.folder.path, self.progress.rows)
        try:
            while self.progress.epoch < self.config.epochs and not self._out_of_patience():
                self._train_epoch()
                self._end_epoch(record)
        finally:
            record.close()
        return self.progress

    def _train_epoch(self) -> None:
        self.step.model.train()
        hold_frozen_norms(self.step.model)
        now = self.progress
        title = f"epoch {now.epoch + 1}/{self.config.epochs}"
        with self.story.bar(title, len(self.loader.ids)) as bar:
            bar.done = now.epoch_images
            begun = time.perf_counter()
            for batch in self.loader.epoch(self.config.seed, now.epoch, now.step):
                ready = time.perf_counter()
                loss = self._train_step(batch)
                ended = time.perf_counter()
                now.count(len(batch.labels), loss, ended - begun, ready - begun)
                self._show(bar, len(batch.labels))
                self._save_if_due()
                begun = time.perf_counter()

    def _train_step(self, batch: Batch) -> float:
        now, config = self.progress, self.config
        numbers = self.augmentation.draw(config.seed, now.epoch, batch.ids)
        inputs, targets = self.augmentation.apply(
            batch, numbers, self.classifier.normalization, self.classes
        )
        set_learning_rate(self.step.optimizer, config.learning_rate, self._rate_factor())
        try:
            loss = self.step(inputs, targets)
        except NonFiniteStepError as error:
            raise NonFiniteLoss(self._explain_non_finite(error, batch)) from error
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ConfigError(_TOO_FEW_FOR_BATCH_NORM) from error
        if self.average:
            self.average.update(self.step.model, self._steps_done)
        return loss

    @property
    def _steps_done(self) -> int:
        return self.progress.epoch * self.loader.steps + self.progress.step

    def _rate_factor(self) -> float:
        steps = self.config.epochs * self.loader.steps
        warmup = round(self.config.warmup_epochs * self.loader.steps)
        return learning_rate_factor(self.config.schedule, self._steps_done, steps, warmup)

    def _end_epoch(self, record: Record) -> None:
        """Validate, keep the row, the best weights and a checkpoint."""
        now = self.progress
        begun = time.perf_counter()
        outcome = observe(self.classifier, self.validation.in_order())
        now.validation_seconds += time.perf_counter() - begun
        right = int((outcome.labels == outcome.predicted).sum())
        row: dict[str, Any] = {
            "epoch": now.epoch + 1,
            "train_loss": now.epoch_loss / now.epoch_images,
            "validation_loss": float(outcome.losses.mean()) if len(outcome) else None,
            **share("validation_accuracy", right, len(outcome)),
            "validation_images": len(outcome),
            "learning_rate": self.step.optimizer.param_groups[0]["lr"],
            "seconds": now.epoch_seconds,
            "images_per_second": now.epoch_images / now.epoch_seconds,
            "data_wait_share": now.epoch_wait_seconds / now.epoch_seconds,
        }
        if row["validation_loss"] is not None and not math.isfinite(row["validation_loss"]):
            raise NonFiniteLoss(
                f"the validation loss is {row['validation_loss']} after epoch {now.epoch + 1}; "
                f"try a lower --learning-rate. The weights before that epoch, if any, lie in "
                f"{self.folder.path / 'checkpoints'}"
            )
        now.close_epoch()
        record.add(row)
        self._keep_best(row)
        self._save()
        self.story.say(_epoch_line(row, self.config.epochs))

    def _keep_best(self, row: dict[str, Any]) -> None:
        """Save the weights unless an earlier epoch validated better; always without validation."""
        now = self.progress
        accuracy, loss = row["validation_accuracy"], row["validation_loss"]
        if accuracy is not None:
            if (accuracy, -loss) <= (now.best_accuracy, -now.best_loss):
                return
            now.best_accuracy, now.best_loss = accuracy, loss
        now.best_epoch = now.epoch
        save_weights(self.folder.best_weights, self.classifier.net)

    def _out_of_patience(self) -> bool:
        patience = self.config.patience_epochs
        return bool(patience) and self.progress.epoch - self.progress.best_epoch >= patience

    def _save_if_due(self) -> None:
        """Save when asked to stop, and now and then in a long epoch."""
        if self.stop:
            self._save()
            now, number = self.progress, self.stop.signal_number or 0
            raise Interrupted(
                f"stopped in epoch {now.epoch + 1} after {now.step} of {self.loader.steps} steps; "
                f"a checkpoint is written: go on with --out {self.folder.path} --resume",
                number,
            )
        if time.monotonic() - self.saved_at > _CHECKPOINT_SECONDS:
            self._save()

    def _save(self) -> None:
        facts = {**asdict(self.progress), "data_key": self.data_key}
        save_checkpoint(self.folder.last_checkpoint, self.step, self.average, facts)
        self.saved_at = time.monotonic()

    def _show(self, bar: Bar, images: int) -> None:
        now = self.progress
        facts = {
            "loss": now.epoch_loss / now.epoch_images,
            "waiting for data": now.epoch_wait_seconds / now.epoch_seconds,
        }
        if now.best_accuracy >= 0:
            facts["best accuracy"] = now.best_accuracy
        bar.advance(images, **facts)

    def _explain_non_finite(self, error: NonFiniteStepError, batch: Batch) -> str:
        now = self.progress
        return (
            f"{error} at epoch {now.epoch + 1}, step {now.step + 1} of {self.loader.steps}; "
            f"the weights were not updated from it. Pictures of that step: "
            f"{self.name_pictures(batch)}. Try a lower --learning-rate"
            f"{', or --precision fp32' if self.step.precision != 'fp32' else ''}. "
            f"What was good so far lies in {self.folder.path / 'checkpoints'}"
        )


def _epoch_line(row: dict[str, Any], epochs: int) -> str:
    line = f"epoch {row['epoch']}/{epochs}: loss {row['train_loss']:.4f}"
    if row["validation_accuracy"] is not None:
        low, high = row["validation_accuracy_low"], row["validation_accuracy_high"]
        line += (
            f", validation {fixed_percent(row['validation_accuracy'])} "
            f"({100 * low:.1f} to {100 * high:.1f}, n = {row['validation_images']:,})"
        )
    return line + (
        f", {row['images_per_second']:,.0f} images/s, "
        f"{100 * row['data_wait_share']:.1f}% of the time waiting for data"
    )
