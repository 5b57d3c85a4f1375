"""The history of a run: one row per epoch in metrics.jsonl and in TensorBoard."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from onsight.evaluation.results import EpochRow, LossLine
from onsight.files import disk_errors, write_atomically

_TAGS = {
    "train_loss": "loss/train",
    "validation_loss": "loss/validation",
    "validation_accuracy": "accuracy/validation",
    "test_loss": "loss/test",
    "test_accuracy": "accuracy/test",
    "learning_rate": "learning_rate",
    "images_per_second": "images_per_second",
}


class Record:
    """Writes each epoch's row, and loss lines as they come; a resumed run appends to its rows.

    rows: those of the earlier epochs; steps: how many steps were made before.
    """

    def __init__(self, folder: Path, rows: list[EpochRow], steps: int) -> None:
        self.path = folder / "metrics.jsonl"
        self.tensorboard = folder / "tensorboard"
        self.rows = rows
        self.steps = steps
        self._save()
        self.epochs_writer = self._writer(self.tensorboard, len(rows))
        self.steps_writer: SummaryWriter | None = None

    def add(self, row: EpochRow) -> None:
        """Keep an epoch's row."""
        self.rows.append(row)
        self._save()
        values: Mapping[str, Any] = row
        for name, tag in _TAGS.items():
            if values.get(name) is not None:
                self.epochs_writer.add_scalar(tag, values[name], row["epoch"])
        with disk_errors(self.path):
            self.epochs_writer.flush()

    def add_line(self, line: LossLine, step: int) -> None:
        """Show a line's mean loss and elapsed seconds at a step of the whole run."""
        if self.steps_writer is None:
            # A folder of their own: on resuming, TensorBoard purges by one count per folder.
            self.steps_writer = self._writer(self.tensorboard / "steps", self.steps)
        self.steps_writer.add_scalar("loss/train", line["loss"], step)
        self.steps_writer.add_scalar("seconds", line["seconds"], step)

    def close(self) -> None:
        """Write what TensorBoard has still buffered."""
        self.epochs_writer.close()
        if self.steps_writer:
            self.steps_writer.close()

    def _writer(self, folder: Path, done: int) -> SummaryWriter:
        with disk_errors(folder):
            return SummaryWriter(str(folder), purge_step=done + 1)

    def _save(self) -> None:
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in self.rows).encode())
