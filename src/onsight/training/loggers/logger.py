"""What every logger of a run can do: TensorBoard, MLflow, Weights & Biases."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from onsight.evaluation.results import EpochRow, LossLine, Results
from onsight.files import write_json

# The figures of an epoch that are worth a curve.
EPOCH_FIGURES = (
    "train_loss",
    "validation_loss",
    "validation_accuracy",
    "test_loss",
    "test_accuracy",
    "learning_rate",
    "images_per_second",
)
_FINAL_FIGURES = (
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "balanced_accuracy",
    "loss",
    "expected_calibration_error",
    "images",
    "seconds",
)


@dataclass(frozen=True)
class LoggedRun:
    """What a logger is told about a run at its start: its folder, its DATA and its config."""

    folder: Path
    data: str
    config: Mapping[str, Any]


class Logger(Protocol):
    """A program that shows how runs go. It may fail: `Loggers` sees to it that training does not.

    It is made with a `LoggedRun`, before any training.
    """

    def begin(self, epochs: int, steps: int) -> None:
        """Start, or continue after so many epochs and steps that are logged already."""

    def log_epoch(self, row: EpochRow) -> None:
        """Show an epoch's figures."""

    def log_line(self, line: LossLine, step: int) -> None:
        """Show a line's mean loss and elapsed seconds at a step of the whole run."""

    def log_results(self, results: Results) -> None:
        """Show what came of the run, and where its report is."""

    def close(self, finished: bool) -> None:
        """Write what is still buffered. finished: whether the run came to its end."""


def epoch_figures(row: EpochRow) -> dict[str, float]:
    """The figures of an epoch by name, without those that it lacks."""
    return _known(row, EPOCH_FIGURES)


def final_figures(results: Results) -> dict[str, float]:
    """The figures of the results by name, each with `final_` before it."""
    return {f"final_{name}": value for name, value in _known(results, _FINAL_FIGURES).items()}


def report_place(results: Results) -> str:
    """Where the report is, wherever it is read from."""
    return str(Path(results["report"]).absolute())


def _known(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    return {name: values[name] for name in names if values.get(name) is not None}


def kept_id(folder: Path, logger: str) -> str | None:
    """The name that a logger gave this run, None if it has none yet."""
    name = _read(folder).get(logger)
    return name if isinstance(name, str) else None


def keep_id(folder: Path, logger: str, name: str) -> None:
    """Keep the name that a logger gave this run. Raises DiskError."""
    write_json(_path(folder), {**_read(folder), logger: name})


def _read(folder: Path) -> dict[str, object]:
    try:
        found = json.loads(_path(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _path(folder: Path) -> Path:
    return folder / "loggers.json"
