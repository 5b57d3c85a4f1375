"""A comparison of runs on the images that all of them held out, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onsight.evaluation.statistics import PairedCounts
from onsight.files import user_path
from onsight.report.comparison.held_out import HeldOut
from onsight.report.comparison.pairing import LeftOut, Pairing
from onsight.report.comparison.settings import Setting
from onsight.report.comparison.words import gap_sentence, lines
from onsight.report.notebook import facts_table


@dataclass(frozen=True)
class Gap:
    """How far one run is above another on the same images.

    counts: the run above comes first; low, high: the difference's 95% interval; p: McNemar's
    exact p-value, and corrected for all that were computed with it.
    """

    above: str
    below: str
    counts: PairedCounts
    low: float
    high: float
    p: float
    corrected_p: float

    @property
    def difference(self) -> float:
        """The accuracy (or recall) of the run above minus that of the run below."""
        return self.counts.difference

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "above": self.above,
            "below": self.below,
            "images": self.counts.n,
            "difference": self.difference,
            "difference_low": self.low,
            "difference_high": self.high,
            "p": self.p,
            "corrected_p": self.corrected_p,
            "both_right": self.counts.both_right,
            "only_above_right": self.counts.only_first,
            "only_below_right": self.counts.only_second,
            "both_wrong": self.counts.both_wrong,
        }


@dataclass(frozen=True)
class RunResult:
    """One of the compared runs: its accuracy on the common images, and what it left out.

    facts: as in its results.json.
    """

    name: str
    path: Path
    held_out: int
    left_out: LeftOut
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    seconds: float | None
    epochs: int | None
    parameters: int | None


@dataclass(frozen=True)
class Comparison:
    """What `onsight.compare` returns: the best run against each of the others.

    gaps: one per other run, in the order given; class_gaps: (class, gap) where a single class
    clearly differs; images: the images that all runs held out; pairs: of runs, for which
    p-values are corrected.
    """

    images: int
    runs: tuple[RunResult, ...]
    best: str
    gaps: tuple[Gap, ...]
    class_gaps: tuple[tuple[str, Gap], ...]
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]
    held_out: Sequence[HeldOut] = field(repr=False)
    pairing: Pairing = field(repr=False)
    pairs: int = 1

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(run.name for run in self.runs)}, n = {self.images:,}>"

    def _repr_html_(self) -> str:
        rows = {gap.below: gap_sentence(self, gap) for gap in self.gaps}
        return facts_table("Comparison", {"best": self.best, **rows})

    def facts(self) -> dict[str, Any]:
        """Everything as plain values, as --json prints it."""
        return {
            "images": self.images,
            "best": self.best,
            "runs": [_run_facts(run) for run in self.runs],
            "differences": [gap.facts() for gap in self.gaps],
            "classes": [{"class": name, **gap.facts()} for name, gap in self.class_gaps],
            "settings": {setting.name: list(setting.values) for setting in self.settings},
            "notes": list(self.notes),
        }

    def save_page(self, path: str | Path) -> Path:
        """Write the page with the images on which the runs differ, and return its path.

        Raises OutputError where that would replace a file that is not such a page; DiskError.
        """
        from onsight.report.comparison.page import write_page

        return write_page(self, user_path(path))


def _run_facts(run: RunResult) -> Mapping[str, Any]:
    return {**vars(run), "path": str(run.path), "left_out": run.left_out._asdict()}
