"""The progress of training, and the metrics of its epochs."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from onsight.errors import NonFiniteLoss
from onsight.evaluation.metrics import accuracy_with_interval
from onsight.evaluation.predictions import PredictionTable
from onsight.evaluation.results import EpochRow, LossLine
from onsight.files import write_atomically
from onsight.text import fixed_percent


@dataclass
class Progress:
    """The position, metrics and times of a run; stored in every checkpoint."""

    # The next step, counted from 0.
    epoch: int = 0
    step: int = 0

    # The current epoch.
    epoch_images: int = 0
    epoch_loss: float = 0.0  # sum over images
    read_images: int = 0  # images whose loss has been read from the device
    epoch_seconds: float = 0.0
    epoch_wait_seconds: float = 0.0  # waiting for data
    epoch_lines: list[LossLine] = field(default_factory=list)
    line_loss: float = 0.0  # sum over the steps since the last line

    # The current segment.
    segments_done: int = 0
    steps_in_segment: int = 0

    # The whole run.
    steps_done: int = 0
    steps_at_evaluation: int = -1  # steps_done at the last evaluation of held-out images
    schedule_fraction: float = 0.0  # completed fraction of the learning rate schedule
    accumulate: int = 0  # parts per batch since memory ran out; 0 if it never did
    images: int = 0
    training_seconds: float = 0.0
    wait_seconds: float = 0.0
    validation_seconds: float = 0.0
    last_evaluation_seconds: float = 0.0
    best_epoch: int = 0
    best_accuracy: float = -1.0
    best_loss: float = 0.0
    best_blend: float = 1.0  # interpolation fraction: start of fine-tuning (0) to best epoch (1)
    is_judged: bool = False  # whether it has been compared with the members before it
    rows: list[EpochRow] = field(default_factory=list)

    def add_step(self, images: int) -> None:
        """Count a finished step with its number of images."""
        self.step += 1
        self.steps_done += 1
        self.steps_in_segment += 1
        self.epoch_images += images

    def add_loss(self, loss: float, images: int) -> None:
        """Add the mean loss of a step; it may be read from the device some steps later."""
        self.read_images += images
        self.epoch_loss += loss * images
        self.line_loss += loss

    @property
    def mean_loss(self) -> float:
        """The mean loss over the epoch's images whose loss has been read."""
        return self.epoch_loss / max(1, self.read_images)

    def close_line(self, steps: int) -> LossLine:
        """Store and return the mean loss of the steps since the last line."""
        seconds = self.training_seconds + self.epoch_seconds
        line: LossLine = {"step": self.step, "loss": self.line_loss / steps, "seconds": seconds}
        self.epoch_lines.append(line)
        self.line_loss = 0.0
        return line

    def add_row(self, row: EpochRow) -> None:
        """Store the row of an epoch, replacing an earlier row of the same epoch."""
        if self.rows and self.rows[-1]["epoch"] == row["epoch"]:
            self.rows.pop()
        self.rows.append(row)

    def close_epoch(self) -> None:
        """Add the epoch's totals to those of the run, and start the next epoch."""
        self.images += self.epoch_images
        self.training_seconds += self.epoch_seconds
        self.wait_seconds += self.epoch_wait_seconds
        self.epoch += 1
        self.step = self.epoch_images = self.read_images = 0
        self.epoch_loss = self.epoch_seconds = self.epoch_wait_seconds = self.line_loss = 0.0
        self.epoch_lines = []


def check_progress(facts: Mapping[str, Any]) -> None:
    """Check that values can be passed to Progress.

    Raises:
        AttributeError: There is no field of that name.
        TypeError: A value does not have the type of its field.
        ValueError: A number is impossible.
    """
    fresh = Progress()
    for name, value in facts.items():
        start = getattr(fresh, name)
        kind = type(start)
        if not isinstance(value, (int, float) if kind is float else kind):
            raise TypeError(f"{name} is {value!r}")
        lowest = min(start, 0) if kind is int else -sys.float_info.max
        if kind is not list and not lowest <= value <= sys.float_info.max:
            raise ValueError(f"{name} is {value!r}")
    if facts["epoch"] > len(facts["rows"]):
        raise ValueError(f"there were {facts['epoch']} epochs, but {len(facts['rows'])} have a row")


def make_epoch_row(
    now: Progress, tables: Mapping[str, PredictionTable], learning_rate: float, checkpoints: Path
) -> EpochRow:
    """Make the row of the epoch that has just ended.

    Args:
        now: The progress, at the last step of the epoch.
        tables: The predictions for each evaluated split, by its name.
        learning_rate: The learning rate of the last step.
        checkpoints: The folder of the checkpoints, for error messages.

    Raises:
        NonFiniteLoss: The validation loss is not finite.
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
    row = add_evaluations(cast(EpochRow, facts), tables)
    if row["validation_loss"] is not None and not math.isfinite(row["validation_loss"]):
        raise NonFiniteLoss(
            f"the validation loss is {row['validation_loss']} after epoch {now.epoch + 1}; "
            f"try a lower --learning-rate. The weights from before that epoch, if any, are in "
            f"{checkpoints}"
        )
    return row


def add_evaluations(row: EpochRow, tables: Mapping[str, PredictionTable]) -> EpochRow:
    """Return the row with the metrics of the evaluated splits added."""
    facts: dict[str, Any] = {**row}
    for name, table in tables.items():
        facts |= compute_split_metrics(name, table)
    return cast(EpochRow, facts)


def compute_split_metrics(name: str, per_image: PredictionTable) -> dict[str, Any]:
    """Compute the loss and accuracy of a split, as fields of a row that start with its name."""
    return {
        f"{name}_loss": float(per_image.losses.mean()) if len(per_image) else None,
        **accuracy_with_interval(per_image, f"{name}_accuracy"),
        f"{name}_images": len(per_image),
    }


def format_epoch(row: Mapping[str, Any], epochs: int) -> str:
    """Format a row for the console.

    Args:
        epochs: The number of epochs of the run; 0 if it is limited by a budget instead.
    """
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


def write_metrics(folder: Path, rows: Sequence[EpochRow]) -> None:
    """Write metrics.jsonl, with all rows of a run so far."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(folder / "metrics.jsonl", text.encode())
