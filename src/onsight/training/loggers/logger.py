"""The interface of loggers, such as TensorBoard, MLflow and Weights & Biases."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from onsight.evaluation.results import EpochRow, LossLine, Results
from onsight.files import write_json
from onsight.report.run_files import read_json

# Fields of an epoch's row that are logged.
_EPOCH_FIGURES = (
    "train_loss",
    "validation_loss",
    "validation_accuracy",
    "test_loss",
    "test_accuracy",
    "learning_rate",
    "images_per_second",
)
# Fields of the results that are logged.
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
    """The run folder, the name of the data and the config of a run."""

    folder: Path
    data: str
    config: Mapping[str, Any]


class Logger(Protocol):
    """Logs the metrics of a run; made from a `LoggedRun` before training.

    Methods may raise any exception: `Loggers` turns it into a warning.
    """

    def begin(self, epochs: int, steps: int) -> None:
        """Start logging; a resumed run has logged this many epochs and steps already."""

    def log_epoch(self, row: EpochRow) -> None:
        """Log the metrics of an epoch."""

    def log_line(self, line: LossLine, step: int) -> None:
        """Log the mean loss and the elapsed time at a step, counted from the start of the run."""

    def log_results(self, results: Results) -> None:
        """Log the final metrics and the path of the report."""

    def close(self, finished: bool) -> None:
        """Flush and close; `finished` is False if the run was stopped or failed."""


def select_epoch_figures(row: EpochRow) -> dict[str, float]:
    """Return the figures of an epoch to log, without missing ones."""
    return _select(row, _EPOCH_FIGURES)


def select_final_figures(results: Results) -> dict[str, float]:
    """Return the final figures to log, with names that start with `final_`."""
    return {f"final_{name}": value for name, value in _select(results, _FINAL_FIGURES).items()}


def get_report_path(results: Results) -> str:
    """Return the absolute path of the report."""
    return str(Path(results["report"]).absolute())


def _select(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    return {name: values[name] for name in names if values.get(name) is not None}


_ID_FILE = "loggers.json"


def read_run_id(folder: Path, logger: str) -> str | None:
    """Return the id of this run in a logger, or None if it has none yet."""
    run_id = _read_run_ids(folder).get(logger)
    return run_id if isinstance(run_id, str) else None


def write_run_id(folder: Path, logger: str, run_id: str) -> None:
    """Store the id of this run in a logger, so that a resumed run continues it.

    Raises:
        DiskError: The file cannot be written.
    """
    write_json(folder / _ID_FILE, {**_read_run_ids(folder), logger: run_id})


def _read_run_ids(folder: Path) -> dict[str, object]:
    ids = read_json(folder / _ID_FILE)
    return ids if isinstance(ids, dict) else {}
