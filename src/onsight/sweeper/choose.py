"""Which run of a sweep won, by validation images alone, and its place among the others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onsight.evaluation.results import EpochRow
from onsight.report.runfiles import read_epochs, read_json
from onsight.sweeper.folder import PlannedRun
from onsight.sweeper.space import Settings


@dataclass(frozen=True)
class SweptRun:
    """A finished run: how it did in validation, which may choose, and on test, which may not."""

    name: str
    path: str
    settings: Settings
    validation_accuracy: float | None
    validation_loss: float | None
    validation_images: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    images: int
    seconds: float


def read_run(run: PlannedRun) -> SweptRun:
    """The results of a finished run."""
    results = read_json(run.path / "results.json")
    row = _best(read_epochs(run.path / "metrics.jsonl") or [])
    return SweptRun(
        name=run.name,
        path=str(run.path),
        settings=run.settings,
        validation_accuracy=row["validation_accuracy"] if row else None,
        validation_loss=row["validation_loss"] if row else None,
        validation_images=row["validation_images"] if row else 0,
        accuracy=results["accuracy"],
        accuracy_low=results["accuracy_low"],
        accuracy_high=results["accuracy_high"],
        images=results["images"],
        seconds=results["seconds"],
    )


def choose(runs: Sequence[SweptRun]) -> SweptRun:
    """The run that validated best: most images right, then the lowest loss, then the first.

    Nothing about the test images is looked at, so that they can judge the choice.
    """
    return max(runs, key=_merit)


def _merit(run: SweptRun) -> tuple[float, float]:
    return _number(run.validation_accuracy), -_number(run.validation_loss, math.inf)


def _best(rows: Sequence[EpochRow]) -> EpochRow | None:
    """The epoch that the run kept, by the trainer's own rule.

    A blend that fine-tuning keeps instead validated a little better than this.
    """
    validated = [row for row in rows if row["validation_accuracy"] is not None]
    if not validated:
        return None
    return max(
        validated, key=lambda row: (row["validation_accuracy"], -(row["validation_loss"] or 0))
    )


def _number(value: float | None, missing: float = -1.0) -> float:
    return missing if value is None else value
