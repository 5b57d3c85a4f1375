"""How far a run has come: everything that a checkpoint keeps besides tensors."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from onsight.errors import NonFiniteLoss
from onsight.evaluation.metrics import proportion_with_interval
from onsight.evaluation.predictions import PredictionTable
from onsight.evaluation.results import EpochRow, LossLine
from onsight.files import write_atomically
from onsight.text import fixed_percent
from onsight.training.loggers.loggers import Loggers


@dataclass
class Progress:
    """epoch and step, from 0, are those of the next step; the second group of fields is about the
    current epoch, the third about the whole run.

    best_blend: how far the best weights lie on the way from the start's to those of that epoch.
    Lines are mean losses, reported at intervals: step, loss, seconds of training so far.
    """

    epoch: int = 0
    step: int = 0

    epoch_images: int = 0
    epoch_loss: float = 0.0
    read_images: int = 0
    epoch_seconds: float = 0.0
    epoch_wait_seconds: float = 0.0
    epoch_lines: list[LossLine] = field(default_factory=list)
    line_loss: float = 0.0

    images: int = 0
    training_seconds: float = 0.0
    wait_seconds: float = 0.0
    validation_seconds: float = 0.0
    best_epoch: int = 0
    best_accuracy: float = -1.0
    best_loss: float = 0.0
    best_blend: float = 1.0
    rows: list[EpochRow] = field(default_factory=list)

    def count(self, images: int) -> None:
        """Count a step."""
        self.step += 1
        self.epoch_images += images

    def add_loss(self, loss: float, images: int) -> None:
        """Add the mean loss of a step, which may be known some steps later."""
        self.read_images += images
        self.epoch_loss += loss * images
        self.line_loss += loss

    @property
    def mean_loss(self) -> float:
        """The mean loss over the epoch's images so far, as far as it is known."""
        return self.epoch_loss / max(1, self.read_images)

    def close_line(self, steps: int) -> LossLine:
        """Keep the mean loss of the last steps as a line."""
        seconds = self.training_seconds + self.epoch_seconds
        line: LossLine = {"step": self.step, "loss": self.line_loss / steps, "seconds": seconds}
        self.epoch_lines.append(line)
        self.line_loss = 0.0
        return line

    def close_epoch(self) -> None:
        """Add the epoch's sums to the run's and begin the next epoch."""
        self.images += self.epoch_images
        self.training_seconds += self.epoch_seconds
        self.wait_seconds += self.epoch_wait_seconds
        self.epoch += 1
        self.step = self.epoch_images = self.read_images = 0
        self.epoch_loss = self.epoch_seconds = self.epoch_wait_seconds = self.line_loss = 0.0
        self.epoch_lines = []


def check_progress(facts: Mapping[str, Any]) -> None:
    """Raise TypeError for a value that is not of its field's type, AttributeError for no field."""
    fresh = Progress()
    for name, value in facts.items():
        kind = type(getattr(fresh, name))
        if not isinstance(value, (int, float) if kind is float else kind):
            raise TypeError(f"{name} is {value!r}")


def epoch_row(
    now: Progress, judged: Mapping[str, PredictionTable], learning_rate: float, checkpoints: Path
) -> EpochRow:
    """The row of the epoch that has just ended.

    judged: the results of each split that was looked at. Raises NonFiniteLoss, which tells of the
    folder of checkpoints, for a validation loss that is not finite.
    """
    facts: dict[str, Any] = {
        "epoch": now.epoch + 1,
        "train_loss": now.mean_loss,
        "learning_rate": learning_rate,
        "seconds": now.epoch_seconds,
        "images_per_second": now.epoch_images / now.epoch_seconds,
        "data_wait_share": now.epoch_wait_seconds / now.epoch_seconds,
        "lines": now.epoch_lines,
    }
    for name, per_image in judged.items():
        facts |= split_facts(name, per_image)
    row = cast(EpochRow, facts)
    if row["validation_loss"] is not None and not math.isfinite(row["validation_loss"]):
        raise NonFiniteLoss(
            f"the validation loss is {row['validation_loss']} after epoch {now.epoch + 1}; "
            f"try a lower --learning-rate. The weights from before that epoch, if any, are in "
            f"{checkpoints}"
        )
    return row


def split_facts(name: str, per_image: PredictionTable) -> dict[str, Any]:
    """The loss and the accuracy of a split, with its interval and n, as fields of a row."""
    right = int((per_image.labels == per_image.predicted).sum())
    return {
        f"{name}_loss": float(per_image.losses.mean()) if len(per_image) else None,
        **proportion_with_interval(f"{name}_accuracy", right, len(per_image)),
        f"{name}_images": len(per_image),
    }


def epoch_line(row: Mapping[str, Any], epochs: int) -> str:
    """The row in words. epochs: how many there will be; 0: as many as fit into a budget."""
    of = f"/{epochs}" if epochs else ""
    line = f"epoch {row['epoch']}{of}: loss {row['train_loss']:.4f}"
    for name in ("validation", "test"):
        if row.get(f"{name}_accuracy") is not None:
            low, high = row[f"{name}_accuracy_low"], row[f"{name}_accuracy_high"]
            line += (
                f", {name} {fixed_percent(row[f'{name}_accuracy'])} "
                f"({100 * low:.1f} to {100 * high:.1f}, n = {row[f'{name}_images']:,})"
            )
    return line + (
        f", {row['images_per_second']:,.0f} images/s, "
        f"{100 * row['data_wait_share']:.1f}% of the time waiting for data"
    )


class Record:
    """Writes each epoch's row, and loss lines as they come; a resumed run appends to its rows.

    rows: those of the earlier epochs; steps: how many steps were made before.
    """

    def __init__(self, folder: Path, rows: list[EpochRow], steps: int, loggers: Loggers) -> None:
        self.path = folder / "metrics.jsonl"
        self.rows = rows
        self.loggers = loggers
        self._save()
        loggers.begin(len(rows), steps)

    def add(self, row: EpochRow) -> None:
        """Keep an epoch's row."""
        self.rows.append(row)
        self._save()
        self.loggers.log_epoch(row)

    def add_line(self, line: LossLine, step: int) -> None:
        """Show a line's mean loss and elapsed seconds at a step of the whole run."""
        self.loggers.log_line(line, step)

    def _save(self) -> None:
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in self.rows).encode())
