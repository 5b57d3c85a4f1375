"""How far a run has come: everything that a checkpoint keeps besides tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onsight.evaluation.results import EpochRow, LossLine


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
