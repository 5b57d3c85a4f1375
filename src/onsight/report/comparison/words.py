"""A comparison in plain sentences: who is ahead, by how much, and whether that is noise."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onsight.report.comparison.settings import Setting
from onsight.report.filters import plain
from onsight.words import duration, fixed_percent, listed, plural

if TYPE_CHECKING:  # whose text is made here
    from onsight.report.comparison.result import Comparison, Gap, RunResult

_NOISE = 0.05  # a p-value of this or more is within noise
_FINE = 10_000  # images from which on hundredths of a point are shown
_LONG = 8  # settings that differ, listed


def lines(found: "Comparison") -> Iterator[str]:
    """The whole comparison, line by line."""
    yield f"{plural(found.images, 'image')} held out by {_all(found)}"
    yield from (f"note: {note}" for note in found.notes)
    yield settings_line(found)
    yield from _table(found)
    yield from (gap_sentence(found, gap) for gap in found.gaps)
    yield from (gap_counts(gap) for gap in found.gaps if len(found.gaps) == 1)
    yield class_sentence(found)
    yield from (f"  {class_line(name, gap)}" for name, gap in found.class_gaps)
    yield LIMIT


LIMIT = (
    "This compares these trained models: with another seed, the same settings give somewhat "
    "different ones."
)


def settings_line(found: "Comparison") -> str:
    """The settings in which the runs differ."""
    shown = [_setting_words(setting) for setting in found.settings]
    return f"settings that differ: {listed(shown, _LONG) or 'none'}"


def gap_sentence(found: "Comparison", gap: "Gap") -> str:
    """Who is above whom, by how many points, and whether that is noise."""
    n = f"n = {gap.counts.n:,}"
    if not gap.counts.only_first + gap.counts.only_second:
        return f"{gap.above} and {gap.below} are right on exactly the same images ({n})"
    digits = 2 if gap.counts.n >= _FINE else 1
    interval = f"95% interval {100 * gap.low:.{digits}f} to {100 * gap.high:.{digits}f}"
    if gap.difference == 0:
        start = f"{gap.above} and {gap.below} are equally accurate ({interval} points, {n})"
    else:
        points = f"{100 * gap.difference:.{digits}f} points"
        start = f"{gap.above} is {points} above {gap.below} ({interval}, {n})"
    return f"{start}: {verdict(gap, corrected=len(found.runs) > 2)}"


def verdict(gap: "Gap", corrected: bool) -> str:
    """Whether a difference is noise, with its p-value."""
    name = "corrected p" if corrected else "p"
    said = f"({name} {_p_words(gap.corrected_p)})"
    if gap.corrected_p < _NOISE:
        return f"more than noise {said}"
    if gap.p < _NOISE:  # only if corrected
        return f"within noise, considering how many runs are compared {said}"
    return f"{'within noise' if gap.low <= 0 else 'at the edge of noise'} {said}"


def gap_counts(gap: "Gap") -> str:
    """How many of the images both, either or neither got right."""
    both, first, second, wrong = gap.counts
    return (
        f"both right {both:,}, only {gap.above} {first:,}, only {gap.below} {second:,}, "
        f"both wrong {wrong:,}"
    )


def class_sentence(found: "Comparison") -> str:
    """How many classes clearly differ."""
    if not found.class_gaps:
        return "No single class differs by more than noise."
    return "Classes that differ by more than noise:"


def class_line(name: str, gap: "Gap") -> str:
    """A class that clearly differs."""
    return (
        f"{name}: {gap.above} recognises {100 * gap.difference:.1f} points more than {gap.below} "
        f"(95% interval {100 * gap.low:.1f} to {100 * gap.high:.1f}, n = {gap.counts.n:,}, "
        f"corrected p {_p_words(gap.corrected_p)})"
    )


def _p_words(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.2g}"


def _all(found: "Comparison") -> str:
    return "both runs" if len(found.runs) == 2 else f"all {len(found.runs)} runs"


def _setting_words(setting: Setting) -> str:
    values = " / ".join(plain(value) for value in setting.values)
    return f"{setting.name.replace('_', ' ')} {values}"


def _table(found: "Comparison") -> Iterator[str]:
    width = max(len("run"), *(len(run.name) for run in found.runs))
    yield f"{'run':<{width}}  accuracy   95% interval      time"
    yield from (_row(run, width) for run in found.runs)


def _row(run: "RunResult", width: int) -> str:
    interval = f"{100 * run.accuracy_low:.1f} to {100 * run.accuracy_high:.1f}"
    accuracy, time = fixed_percent(run.accuracy), duration(run.seconds)
    return f"{run.name:<{width}}  {accuracy:>8}  {interval:>13}  {time:>8}"
