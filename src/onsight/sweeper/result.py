"""What came of a sweep: the winner, the runs, those that failed, and the paired comparison."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onsight.report.comparison.result import Comparison
from onsight.report.comparison.words import gap_sentence
from onsight.report.notebook import facts_table
from onsight.sweeper.choose import SweptRun
from onsight.sweeper.space import Settings, Space
from onsight.words import duration, fixed_percent, percent, plural


@dataclass(frozen=True)
class FailedRun:
    """A run that failed, and why."""

    name: str
    settings: Settings
    error: str


@dataclass(frozen=True)
class Sweep:
    """What `onsight.sweep` returns.

    winner: chosen by validation images alone; compared: it against every other run on the test
    images, None if no other finished; page: of that comparison.
    """

    path: Path
    space: Space
    runs: tuple[SweptRun, ...]
    failed: tuple[FailedRun, ...]
    winner: SweptRun
    compared: Comparison | None
    page: Path | None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        others = {run.name: fixed_percent(run.accuracy) for run in self.runs}
        return facts_table("Sweep", {"folder": self.path, "winner": self.winner.name, **others})

    def lines(self) -> Iterator[str]:
        """The table and what follows from it, line by line."""
        yield from _table(self.runs)
        yield from (f"failed: {run.name}: {run.error}" for run in self.failed)
        yield from self._on_winner()
        if self.compared:
            yield from (f"note: {note}" for note in self.compared.notes)
            yield from (gap_sentence(self.compared, gap) for gap in self.compared.gaps)

    def _on_winner(self) -> Iterator[str]:
        """The winner's two accuracies, and which of them to believe."""
        one, count = self.winner, len(self.runs)
        chosen = f"{one.name} validated best, with {percent(one.validation_accuracy)}"
        images = plural(one.validation_images, "image")
        if count > 1:
            chosen += f"; as the best of {count} on the same {images}, that figure flatters it"
        yield f"{chosen}."
        yield (
            f"What to expect of it: {percent(one.accuracy)} (95% interval "
            f"{percent(one.accuracy_low)} to {percent(one.accuracy_high)}, n = {one.images:,}), on "
            "test images, which chose nothing."
        )

    def facts(self) -> dict[str, Any]:
        """Everything as plain values, as --json prints it."""
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
            "notes": compared.get("notes", []),
            "space": self.space,
            "sweep": str(self.path),
            "page": str(self.page) if self.page else None,
        }


def _table(runs: tuple[SweptRun, ...]) -> Iterator[str]:
    width = max(len("run"), *(len(run.name) for run in runs))
    yield f"{'run':<{width}}  validation      test   95% interval      time"
    yield from (_row(run, width) for run in runs)


def _row(run: SweptRun, width: int) -> str:
    interval = f"{100 * run.accuracy_low:.1f} to {100 * run.accuracy_high:.1f}"
    return (
        f"{run.name:<{width}}  {fixed_percent(run.validation_accuracy):>10}  "
        f"{fixed_percent(run.accuracy):>8}  {interval:>13}  {duration(run.seconds):>8}"
    )
