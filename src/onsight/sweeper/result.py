"""The result of a sweep: the winner on validation images, compared with the others on test."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onsight.errors import OutputError
from onsight.evaluation.statistics import wilson
from onsight.report.compare_result import RunComparison, gap_sentence
from onsight.report.run_files import read_results
from onsight.sweeper.plan import PlannedRun, Settings, Space
from onsight.text import duration, fixed_percent, notebook_table, percent, plural


@dataclass(frozen=True)
class SweptRun:
    """A finished run: its validation results, which choose the winner, and its test results."""

    name: str
    path: str
    settings: Settings
    validation_accuracy: float | None
    validation_loss: float | None
    validation_images: int
    accuracy: float  # on test images
    accuracy_low: float
    accuracy_high: float
    images: int
    seconds: float


@dataclass(frozen=True)
class FailedRun:
    """A run that failed, and the reason."""

    name: str
    settings: Settings
    error: str


def read_run(run: PlannedRun) -> SweptRun:
    """Read the results of a finished run. Raises OutputError."""
    results = read_results(run.path)
    if results["accuracy"] is None or results["seconds"] is None:
        raise OutputError(f"{run.path} has no results; remove it, and the sweep trains it again")
    return SweptRun(
        name=run.name,
        path=str(run.path),
        settings=run.settings,
        validation_accuracy=results["validation_accuracy"],
        validation_loss=results["validation_loss"],
        validation_images=results["validation_images"] or 0,
        accuracy=results["accuracy"],
        accuracy_low=results["accuracy_low"],
        accuracy_high=results["accuracy_high"],
        images=results["images"],
        seconds=results["seconds"],
    )


def choose_winner(runs: Sequence[SweptRun]) -> SweptRun:
    """Return the run with the best validation result; ties: lowest loss, then first.

    The lower ends of the intervals are compared, as a budget may leave time to validate on a few
    images only, of which all are easily right. With as many images each, the most correct wins.
    Test images play no part, so that they give an unbiased estimate of its accuracy.
    """

    def merit(run: SweptRun) -> tuple[float, float]:
        accuracy, loss, images = run.validation_accuracy, run.validation_loss, run.validation_images
        low = -1.0 if accuracy is None else wilson(round(accuracy * images), images)[0]
        return low, -math.inf if loss is None else -loss

    return max(runs, key=merit)


@dataclass(frozen=True)
class Sweep:
    """The result of `onsight.sweep`; `print` shows its table and conclusions.

    Attributes:
        path: The folder of the sweep, which contains the run folders.
        space: The settings that were tried, and their values.
        runs: The finished runs.
        failed: The runs that failed, with the reason.
        winner: The run with the best validation result; `winner.path` is its folder.
        compared: The winner compared with every other run on test images. None if no other run
            finished, or if no image is a test image of all runs.
        page: The HTML page of that comparison.
        notes: Which images are not compared, and why.
    """

    path: Path
    space: Space
    runs: tuple[SweptRun, ...]
    failed: tuple[FailedRun, ...]
    winner: SweptRun
    compared: RunComparison | None
    page: Path | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        others = {run.name: fixed_percent(run.accuracy) for run in self.runs}
        return notebook_table("Sweep", {"folder": self.path, "winner": self.winner.name, **others})

    def lines(self) -> Iterator[str]:
        """Yield the table and the conclusions, line by line."""
        yield from _format_table(self.runs)
        yield from (f"failed: {run.name}: {run.error}" for run in self.failed)
        yield from self._winner_lines()
        yield from (f"note: {note}" for note in self.notes)
        if self.compared:
            yield from (gap_sentence(self.compared, gap) for gap in self.compared.gaps)

    def _winner_lines(self) -> Iterator[str]:
        winner, count = self.winner, len(self.runs)
        images = plural(winner.validation_images, "image")
        validation = f"validation accuracy {percent(winner.validation_accuracy)} of {images}"
        optimistic = f" (optimistic, as the best of {count} runs)" if count > 1 else ""
        yield f"winner: {winner.name}, {validation}{optimistic}"
        yield (
            f"expected accuracy: {percent(winner.accuracy)} (95% CI "
            f"{percent(winner.accuracy_low)} to {percent(winner.accuracy_high)}, "
            f"n = {winner.images:,} test images, which had no part in the choice)"
        )

    def facts(self) -> dict[str, Any]:
        """Return everything as plain values, as --json prints it."""
        compared = self.compared.facts() if self.compared else {}
        return {
            "winner": self.winner.name,
            "settings": self.winner.settings,
            "validation_accuracy": self.winner.validation_accuracy,
            "validation_images": self.winner.validation_images,
            "best_of": len(self.runs),
            "accuracy": self.winner.accuracy,
            "accuracy_low": self.winner.accuracy_low,
            "accuracy_high": self.winner.accuracy_high,
            "images": self.winner.images,
            "runs": [asdict(run) for run in self.runs],
            "failed": [asdict(run) for run in self.failed],
            "differences": compared.get("differences", []),
            "notes": list(self.notes),
            "space": self.space,
            "sweep": str(self.path),
            "page": str(self.page) if self.page else None,
        }


def _format_table(runs: tuple[SweptRun, ...]) -> Iterator[str]:
    width = max(len("run"), *(len(run.name) for run in runs))
    yield f"{'run':<{width}}  validation      test   95% interval      time"
    for run in runs:
        interval = f"{100 * run.accuracy_low:.1f} to {100 * run.accuracy_high:.1f}"
        yield (
            f"{run.name:<{width}}  {fixed_percent(run.validation_accuracy):>10}  "
            f"{fixed_percent(run.accuracy):>8}  {interval:>13}  {duration(run.seconds):>8}"
        )
