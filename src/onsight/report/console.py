"""What a run prints on stderr: lines, and progress bars on a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from onsight.choice import Choice
from onsight.evaluation.results import ClassResult, Results, worst_first
from onsight.report.sentences import (
    curve_sentence,
    is_unbalanced,
    out_of_distribution_sentence,
    pair_sentence,
    temperature_sentence,
)
from onsight.words import fixed_percent, percent, plural

_REFRESH_SECONDS = 0.1
_LINE_SECONDS = 15.0
_PAIRS_SHOWN = 5


class Bar:
    """Counts images, or another unit, towards a total if any; cheap enough to call every step."""

    def __init__(
        self, console: Console, title: str, total: int | None, live: Progress | None, unit: str
    ) -> None:
        self.console = console
        self.title = title
        self.total = total
        self.unit = unit
        self.live = live
        self.task = live.add_task(title, total=total, note="") if live else TaskID(0)
        self.pause_seconds = _REFRESH_SECONDS if live else _LINE_SECONDS
        self.done = 0
        self.started = self.shown = time.monotonic()

    def advance(self, count: int, facts: Callable[[], dict[str, float]] = dict) -> None:
        """Count more of them; facts, such as the loss, are asked for only when it is drawn."""
        self.done += count
        now = time.monotonic()
        if now - self.shown < self.pause_seconds:
            return
        self.shown = now
        rate = self.done / (now - self.started)
        note = f"{rate:,.0f} {self.unit}/s" + "".join(_fact(*fact) for fact in facts().items())
        if self.live:
            self.live.update(self.task, completed=self.done, note=note)
        else:
            of, left = "", ""
            if self.total is not None:
                of, left = f"/{self.total:,}", f", {(self.total - self.done) / rate:,.0f} s left"
            self.console.print(f"{self.title}: {self.done:,}{of}, {note}{left}")


class Lasting:
    """A stream that falls silent when its terminal or reader is gone: no run ends for that."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, if anybody reads."""
        with suppress(OSError, ValueError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if anybody reads."""
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ResultConsole(Console):
    """Prints results on stdout; that its reader has closed it, the command line takes calmly."""

    def __init__(self) -> None:
        super().__init__(highlight=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Raise the error, in place of ending the program with code 1."""
        raise


class Reporter:
    """Reports a run as plain text that can be understood without colours."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(
            file=cast(IO[str], Lasting(sys.stderr)), highlight=False, soft_wrap=True
        )

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(escape(text))

    def warn(self, text: str) -> None:
        """One line that deserves attention."""
        self.console.print(f"[yellow]note:[/] {escape(text)}")

    def choice(self, name: str, choice: Choice[Any]) -> None:
        """A choice with its reason."""
        value = choice.value
        if isinstance(value, tuple):  # a (height, width)
            value = "x".join(str(side) for side in value)
        self.say(f"{name.replace('_', ' ')}: {value} ({choice.reason})")

    @contextmanager
    def bar(self, title: str, total: int | None, unit: str = "images") -> Iterator[Bar]:
        """A progress bar, which on a terminal updates in place and disappears when it is done.

        total: None if nobody knows.
        """
        if not self.console.is_terminal:
            yield Bar(self.console, title, total, None, unit)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as live:
            yield Bar(self.console, title, total, live, unit)


class SilentReporter(Reporter):
    """Prints nothing."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))


def print_results(results: Results, console: Console) -> None:
    """The result of an evaluation: the accuracy, then a row per class."""
    console.print(headline(results))
    if results.get("tta_accuracy") is not None:
        console.print(_tta_line(results))
    if results.get("split") == "folds":
        console.print("the model that is kept has seen all images, so none is left to judge it")
    for line in _details(results):
        console.print(escape(line))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("class")
    for name in ("n", "recall", "95% interval", "precision", "95% interval"):
        table.add_column(name, justify="right")
    rows = results["classes"]
    for row in rows if len(rows) <= 40 else worst_first(rows)[:20]:
        table.add_row(escape(row["name"]), f"{row['images']:,}", *_share_cells(row))
    console.print(table)
    if len(rows) > 40:
        console.print(
            f"(the 20 of {len(rows):,} classes with the lowest recall; the report has all)"
        )


def _details(results: Results) -> Iterator[str]:
    """What the accuracy alone does not say: balance, calibration, confusions, more images."""
    if is_unbalanced(results["classes"]):
        yield _accuracy(
            results["balanced_accuracy"],
            results["balanced_accuracy_low"],
            results["balanced_accuracy_high"],
            f"mean over {plural(_present(results), 'class', 'classes')}, n = {results['images']:,}",
            name="balanced accuracy",
        )
    if results["expected_calibration_error"] is not None:
        error = percent(results["expected_calibration_error"])
        yield f"expected calibration error {error}. {temperature_sentence(results)}".strip()
    if out_of_distribution := out_of_distribution_sentence(results):
        yield out_of_distribution
    pairs = results["confused_pairs"] or []
    yield from (pair_sentence(pair) for pair in pairs[:_PAIRS_SHOWN])
    if len(pairs) > _PAIRS_SHOWN:
        yield f"(and {plural(len(pairs) - _PAIRS_SHOWN, 'more such pair')}; the report has all)"
    if "learning_curve" in results:
        yield curve_sentence(results["learning_curve"])


def _present(results: Results) -> int:
    return sum(row["images"] > 0 for row in results["classes"])


def headline(results: Results) -> str:
    """The accuracy in one line, with its interval and n."""
    if not results["images"]:
        return "no held-out images, so the accuracy is unknown"
    flattered = results.get("split") == "validation"
    shares = results["accuracy"], results["accuracy_low"], results["accuracy_high"]
    where = ", on the images that were used to choose the epoch" if flattered else ""
    if results.get("split") == "folds":
        where = f", each image judged by one of {results['folds']} models that had not seen it"
    return _accuracy(*shares, f"n = {results['images']:,}") + where


def _tta_line(results: Results) -> str:
    """The accuracy of the mean over several views of each image."""
    shares = (
        results["tta_accuracy"],
        results["tta_accuracy_low"],
        results["tta_accuracy_high"],
    )
    accuracy = _accuracy(*shares, f"n = {results['tta_images']:,}")
    return f"averaged over several views of each image ({results['tta']}): {accuracy}"


def _accuracy(
    share: float | None, low: float | None, high: float | None, of: str, name: str = "accuracy"
) -> str:
    ends = f"{fixed_percent(low)} to {fixed_percent(high)}"
    return f"{name} {fixed_percent(share)} (95% interval {ends}, {of})"


def _share_cells(row: ClassResult) -> list[str]:
    return [
        fixed_percent(row["recall"]),
        _interval(row["recall_low"], row["recall_high"]),
        fixed_percent(row["precision"]),
        _interval(row["precision_low"], row["precision_high"]),
    ]


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"


def _fact(name: str, value: float) -> str:
    if name == "loss":
        return f", loss {value:.3f}"
    return f", {name} {100 * value:.0f}%"
