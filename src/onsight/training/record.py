"""The course of a run: a row an epoch in metrics.jsonl and in TensorBoard."""

import json
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from onsight.files import disk_errors, write_atomically

_TAGS = {
    "train_loss": "loss/train",
    "validation_loss": "loss/validation",
    "validation_accuracy": "accuracy/validation",
    "learning_rate": "learning_rate",
    "images_per_second": "images_per_second",
}


class Record:
    """Writes each epoch's row; a resumed run goes on behind the rows it is given."""

    def __init__(self, folder: Path, rows: list[dict[str, Any]]) -> None:
        self.path = folder / "metrics.jsonl"
        self.rows = rows
        self._save()
        with disk_errors(folder):
            self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=len(rows) + 1)

    def add(self, row: dict[str, Any]) -> None:
        """Keep an epoch's row."""
        self.rows.append(row)
        self._save()
        for name, tag in _TAGS.items():
            if row[name] is not None:
                self.writer.add_scalar(tag, row[name], row["epoch"])
        with disk_errors(self.path):
            self.writer.flush()

    def close(self) -> None:
        """Write what TensorBoard still holds back."""
        self.writer.close()

    def _save(self) -> None:
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in self.rows).encode())
