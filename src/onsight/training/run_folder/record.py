"""The history of a run: one row per epoch in metrics.jsonl and in its loggers."""

import json
from pathlib import Path

from onsight.evaluation.results import EpochRow, LossLine
from onsight.files import write_atomically
from onsight.training.loggers.loggers import Loggers


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
