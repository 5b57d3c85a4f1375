"""The result of comparing runs: its values, and sentences on which run is better."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from onsight.evaluation.statistics import PairedCounts
from onsight.files import user_path
from onsight.report.compare_page import write_comparison_page
from onsight.report.compare_pairs import HeldOutPredictions, LeftOut, Pairing
from onsight.text import duration, fixed_percent, joined, notebook_table, plain_value, plural

SIGNIFICANT = 0.05  # p-values at or above this are not significant
_FINE_IMAGES = 10_000  # with at least this many images, hundredths of a point are shown
_SETTINGS_SHOWN = 8

CAVEAT = (
    "This compares these trained models: with another seed, the same settings give somewhat "
    "different ones."
)


# --- Values ---


@dataclass(frozen=True)
class Gap:
    """The lead of one run over another on the same images.

    Attributes:
        above: The name of the run that is ahead.
        below: The name of the other run.
        counts: The images that both, one or none classified correctly; the run above comes first.
        low: The lower end of the 95% interval of the difference.
        high: The upper end.
        p: The p-value of McNemar's exact test.
        corrected_p: The p-value corrected for all tests that were made.
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
        """Return plain values for JSON."""
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


class DifferingSetting(NamedTuple):
    """A setting and its value in each run, None where a run does not have it."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class RunResult:
    """A compared run: its accuracy on the common images, and its images that were not compared."""

    name: str
    path: Path
    held_out: int
    left_out: LeftOut
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    seconds: float | None  # this and the next two as in results.json
    epochs: int | None
    parameters: int | None


@dataclass(frozen=True)
class RunComparison:
    """The result of `onsight.compare`: the best run against each of the others.

    Attributes:
        images: The number of images that all runs held out.
        runs: The accuracy of each run on these images.
        best: The name of the run that the others are compared with.
        gaps: The differences from the other runs, in the order given.
        class_gaps: The classes with a significant difference.
        settings: The settings in which the runs differ.
        notes: Which images are not compared, and what biases the figures.
        held_out: The predictions of each run.
        pairing: Which predictions belong to the same image.
        pairs: The number of pairs of runs for which p-values are corrected.
    """

    images: int
    runs: tuple[RunResult, ...]
    best: str
    gaps: tuple[Gap, ...]
    class_gaps: tuple[tuple[str, Gap], ...]
    settings: tuple[DifferingSetting, ...]
    notes: tuple[str, ...]
    held_out: Sequence[HeldOutPredictions] = field(repr=False)
    pairing: Pairing = field(repr=False)
    pairs: int = 1

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def __repr__(self) -> str:
        names = ", ".join(run.name for run in self.runs)
        return f"<RunComparison of {names}, n = {self.images:,}>"

    def _repr_html_(self) -> str:
        rows = {gap.below: gap_sentence(self, gap) for gap in self.gaps}
        return notebook_table("Comparison", {"best": self.best, **rows})

    def facts(self) -> dict[str, Any]:
        """Return everything as plain values, as --json prints it."""
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

        Raises:
            OutputError: That would replace a file that is not such a page.
            DiskError: The file cannot be written.
        """
        return write_comparison_page(
            user_path(path),
            self.held_out,
            self.pairing,
            comparison=self,
            sentences=[gap_sentence(self, gap) for gap in self.gaps],
            class_sentence=_class_sentence(self),
            class_lines=[class_line(name, gap) for name, gap in self.class_gaps],
            caveat=CAVEAT,
        )


def _run_facts(run: RunResult) -> Mapping[str, Any]:
    return {**vars(run), "path": str(run.path), "left_out": run.left_out._asdict()}


# --- Sentences ---


def settings_line(comparison: RunComparison) -> str:
    """List the settings in which the runs differ."""
    settings = [
        f"{setting.name.replace('_', ' ')} {' / '.join(map(plain_value, setting.values))}"
        for setting in comparison.settings
    ]
    return f"settings that differ: {joined(settings, _SETTINGS_SHOWN) or 'none'}"


def gap_sentence(comparison: RunComparison, gap: Gap) -> str:
    """State which run is ahead, by how many points, and whether that is significant."""
    n = f"n = {gap.counts.n:,}"
    if not gap.counts.only_first + gap.counts.only_second:
        return f"{gap.above} and {gap.below} are correct on exactly the same images ({n})"
    digits = 2 if gap.counts.n >= _FINE_IMAGES else 1
    interval = f"95% CI {100 * gap.low:.{digits}f} to {100 * gap.high:.{digits}f}"
    if gap.difference == 0:
        start = f"{gap.above} and {gap.below} are equally accurate ({interval} points, {n})"
    else:
        points = f"{100 * gap.difference:.{digits}f} points"
        start = f"{gap.above} is {points} above {gap.below} ({interval}, {n})"
    return f"{start}: {significance(gap, corrected=len(comparison.runs) > 2)}"


def significance(gap: Gap, corrected: bool) -> str:
    """State whether a difference is significant, with its p-value."""
    p = f"({'corrected p' if corrected else 'p'} {_p_text(gap.corrected_p)})"
    if gap.corrected_p < SIGNIFICANT:
        return f"significant {p}"
    if gap.p < SIGNIFICANT:  # only without the correction
        return f"not significant, considering how many runs are compared {p}"
    return f"{'not significant' if gap.low <= 0 else 'borderline'} {p}"


def gap_counts(gap: Gap) -> str:
    """Count the images that both runs, one or none classified correctly."""
    both, first, second, neither = gap.counts
    return (
        f"both correct {both:,}, only {gap.above} {first:,}, only {gap.below} {second:,}, "
        f"neither {neither:,}"
    )


def class_line(name: str, gap: Gap) -> str:
    """Describe a class with a significant difference."""
    return (
        f"{name}: {gap.above} recognises {100 * gap.difference:.1f} points more than {gap.below} "
        f"(95% CI {100 * gap.low:.1f} to {100 * gap.high:.1f}, n = {gap.counts.n:,}, "
        f"corrected p {_p_text(gap.corrected_p)})"
    )


def _lines(comparison: RunComparison) -> Iterator[str]:
    runs = "both runs" if len(comparison.runs) == 2 else f"all {len(comparison.runs)} runs"
    yield f"{plural(comparison.images, 'image')} held out by {runs}"
    yield from (f"note: {note}" for note in comparison.notes)
    yield settings_line(comparison)
    yield from _table(comparison)
    yield from (gap_sentence(comparison, gap) for gap in comparison.gaps)
    if len(comparison.gaps) == 1:
        yield gap_counts(comparison.gaps[0])
    yield _class_sentence(comparison)
    yield from (f"  {class_line(name, gap)}" for name, gap in comparison.class_gaps)
    yield CAVEAT


def _class_sentence(comparison: RunComparison) -> str:
    if not comparison.class_gaps:
        return "No single class has a significant difference."
    return "Classes with a significant difference:"


def _p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.2g}"


def _table(comparison: RunComparison) -> Iterator[str]:
    width = max(len("run"), *(len(run.name) for run in comparison.runs))
    yield f"{'run':<{width}}  {'accuracy':>8}  {'95% CI':>13}  {'time':>8}"
    for run in comparison.runs:
        interval = f"{100 * run.accuracy_low:.1f} to {100 * run.accuracy_high:.1f}"
        accuracy, time = fixed_percent(run.accuracy), duration(run.seconds)
        yield f"{run.name:<{width}}  {accuracy:>8}  {interval:>13}  {time:>8}"
