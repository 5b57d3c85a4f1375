"""Terminal output: the progress of a run on stderr, and results on stdout."""

import math
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
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
from rich.text import Text

from onsight.choice import Choice
from onsight.evaluation.results import Results, sort_by_recall
from onsight.limits import MIN_EVALUATED
from onsight.report.sentences import (
    calibration_sentence,
    is_better_than_most_frequent,
    is_imbalanced,
    learning_curve_sentence,
    most_frequent_sentence,
    out_of_distribution_sentence,
    pair_sentence,
)
from onsight.text import fixed_percent, joined, percent, plural, printable, shorten

_REFRESH_SECONDS = 0.1
_LINE_SECONDS = 15.0
_PAIRS_SHOWN = 5
_WEAKEST, _NAME_LENGTH = 3, 40  # classes of a brief result; characters of their names
_MAX_CLASS_ROWS, _WORST_ROWS = 40, 20  # with more classes, only the worst are shown
_RECIPE_INDENT = 14


class Bar:
    """Counts images, or another unit, towards an optional total; cheap enough for every step."""

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
        self.started = self.last_shown = time.monotonic()

    def advance(self, count: int, facts: Callable[[], dict[str, float]] = dict) -> None:
        """Count more items; facts, such as the loss, are computed only when the line is printed."""
        self.done += count
        now = time.monotonic()
        if now - self.last_shown < self.pause_seconds:
            return
        self.last_shown = now
        rate = self.done / (now - self.started)
        note = f"{rate:,.0f} {self.unit}/s"
        note += "".join(_format_fact(name, value) for name, value in facts().items())
        if self.live:
            self.live.update(self.task, completed=self.done, note=note)
        else:
            of, left = "", ""
            if self.total is not None:
                of, left = f"/{self.total:,}", f", {(self.total - self.done) / rate:,.0f} s left"
            self.console.print(f"{self.title}: {self.done:,}{of}, {note}{left}")


class LastingStream:
    """A stream that discards output once its terminal or reader is gone, so the run continues."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, ignoring a closed stream."""
        with suppress(OSError, ValueError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, ignoring a closed stream."""
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TextConsole(Console):
    """A console for text of any origin: names of emojis and control characters stay text."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, emoji=False, **settings)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string, or a cell of a table."""
        return super().render_str(printable(text), **options)


class WrappingConsole(TextConsole):
    """A console that wraps at words on a terminal but not in a pipe."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.soft_wrap = not self.is_terminal


class ResultConsole(WrappingConsole):
    """Prints results on stdout; the command line handles a reader that has closed it."""

    def on_broken_pipe(self) -> None:
        """Raise the error instead of exiting with code 1."""
        raise


class Reporter:
    """Reports a run as plain text that does not rely on colours.

    Args:
        console: Where to print. Default: stderr.
        verbose: Whether to print details, too.
    """

    def __init__(self, console: Console | None = None, *, verbose: bool = False) -> None:
        self.console = console or WrappingConsole(file=cast(IO[str], LastingStream(sys.stderr)))
        self.verbose = verbose
        self.shows_choices = True
        self._last_progress = -math.inf

    def say(self, text: str) -> None:
        """Print one line."""
        self.console.print(escape(text))

    def detail(self, text: str) -> None:
        """Print one line if the reporter is verbose."""
        if self.verbose:
            self.say(text)

    def progress(self, text: str) -> None:
        """Print one of many similar lines: all if verbose, otherwise now and then in a pipe."""
        now = time.monotonic()
        is_due = now - self._last_progress >= _LINE_SECONDS
        if self.verbose or (is_due and not self.console.is_terminal):
            self._last_progress = now
            self.say(text)

    def warn(self, text: str) -> None:
        """Print one line that deserves attention."""
        self.console.print(f"[yellow]note:[/] {escape(text)}")

    def choice(self, name: str, choice: Choice[Any], *, is_detail: bool = True) -> None:
        """Print a choice with its reason."""
        if not self.shows_choices:
            return
        value = choice.value
        if isinstance(value, tuple):  # a (height, width)
            value = "x".join(str(side) for side in value)
        report = self.detail if is_detail else self.say
        report(f"{name.replace('_', ' ')}: {value} ({choice.reason})")

    @contextmanager
    def bar(self, title: str, total: int | None, unit: str = "images") -> Iterator[Bar]:
        """Show a progress bar, which a terminal updates in place and clears when it is done.

        total: None if it is unknown.
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


class PartReporter(Reporter):
    """Reports one of several trainings, with its name before every line."""

    def __init__(self, reporter: Reporter, name: str) -> None:
        super().__init__(reporter.console, verbose=reporter.verbose)
        self.shows_choices = reporter.shows_choices
        self.reporter = reporter
        self.name = name

    def progress(self, text: str) -> None:
        """Print one of many similar lines, of all trainings together."""
        self.reporter.progress(f"{self.name}: {text}")

    def say(self, text: str) -> None:
        """Print one line."""
        start = f"{self.name}: "
        self.reporter.say(start + text.removeprefix(start))

    def warn(self, text: str) -> None:
        """Print one line that deserves attention."""
        self.reporter.warn(f"{self.name}: {text}")

    @contextmanager
    def bar(self, title: str, total: int | None, unit: str = "images") -> Iterator[Bar]:
        """Show a progress bar."""
        with self.reporter.bar(f"{self.name}, {title}", total, unit) as bar:
            yield bar


class BarReporter(Reporter):
    """Shows progress bars and warnings only."""

    def say(self, text: str) -> None:
        """Print nothing."""

    def progress(self, text: str) -> None:
        """Print nothing."""


class SilentReporter(Reporter):
    """Prints nothing."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))


def print_results(results: Results, console: Console, *, is_brief: bool = False) -> None:
    """Print the result of an evaluation.

    Args:
        results: The result.
        console: Where to print.
        is_brief: Print the weakest classes instead of calibration, confusions and every class.
    """
    lines = [headline(results), *_qualifications(results)]
    lines += _weakest_classes(results) if is_brief else _details(results)
    if "learning_curve" in results:
        lines.append(learning_curve_sentence(results["learning_curve"]))
    for line in lines:
        console.print(escape(line))
    if not is_brief:
        _print_classes(results, console)


def _print_classes(results: Results, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("class")
    for name in ("n", "recall", "95% CI", "precision", "95% CI"):
        table.add_column(name, justify="right")
    rows = results["classes"]
    for row in rows if len(rows) <= _MAX_CLASS_ROWS else sort_by_recall(rows)[:_WORST_ROWS]:
        table.add_row(
            escape(row["name"]),
            f"{row['images']:,}",
            fixed_percent(row["recall"]),
            _interval(row["recall_low"], row["recall_high"]),
            fixed_percent(row["precision"]),
            _interval(row["precision_low"], row["precision_high"]),
        )
    console.print(table)
    if len(rows) > _MAX_CLASS_ROWS:
        console.print(
            f"(the {_WORST_ROWS} of {len(rows):,} classes with the lowest recall; "
            "the report has all)"
        )


def headline(results: Results) -> str:
    """Return the accuracy in one line, with its interval, n and what it was measured on."""
    if not results["images"]:
        return "no held-out images, so the accuracy is unknown"
    images = " test images" if results.get("split") == "test" else ""
    text = _accuracy_text(results, "accuracy", f"n = {results['images']:,}{images}")
    if results.get("split") == "folds":
        return f"{text}, {results.get('folds')}-fold cross-validation"
    if results.get("split") == "validation":
        return f"{text}, on the images that were used to choose the epoch"
    return text


def print_recipe(name: str, about: Mapping[str, str], console: Console) -> None:
    """Print a recipe's name, its description and the command that runs it."""
    console.print(f"[bold]{escape(name)}[/]")
    rows = {key: about[key] for key in ("data", "reproduces", "published", "measured")}
    rows |= {"also on": about["stand_in"], "command": f"onsight train --recipe {name}"}
    for title, text in rows.items():
        console.print(escape(_recipe_row(title, text, console)))
    console.print()


def _qualifications(results: Results) -> Iterator[str]:
    """Yield lines that qualify the accuracy: averaged views, a trivial rival, and imbalance."""
    if results.get("tta_accuracy") is not None:
        accuracy = _accuracy_text(results, "tta_accuracy", f"n = {results['tta_images']:,}")
        yield f"averaged over several views of each image ({results['tta']}): {accuracy}"
    if not is_better_than_most_frequent(results):
        yield most_frequent_sentence(results)
    if is_imbalanced(results["classes"]):
        classes = sum(row["images"] > 0 for row in results["classes"])
        n = f"mean over {plural(classes, 'class', 'classes')}, n = {results['images']:,}"
        yield _accuracy_text(results, "balanced_accuracy", n, "balanced accuracy")


def _weakest_classes(results: Results) -> Iterator[str]:
    """Yield a line with the classes of the lowest recall, unless no class has mistakes."""
    rows = [row for row in sort_by_recall(results["classes"]) if row["images"] >= MIN_EVALUATED]
    weakest = [row for row in rows[: min(_WEAKEST, len(rows) - 1)] if row["recall"] != 1]
    if weakest:
        parts = [
            f"{shorten(row['name'], _NAME_LENGTH)} {percent(row['recall'])} of {row['images']:,}"
            for row in weakest
        ]
        yield f"lowest recall: {joined(parts)}"


def _details(results: Results) -> Iterator[str]:
    """Yield lines on what was evaluated, calibration, out-of-distribution images and confusions."""
    if results.get("split") == "folds":
        yield "the final model learned from all folds; the accuracy above is cross-validated"
    if results["expected_calibration_error"] is not None:
        yield calibration_sentence(results)
    if out_of_distribution := out_of_distribution_sentence(results):
        yield out_of_distribution
    pairs = results["confused_pairs"] or []
    yield from map(pair_sentence, pairs[:_PAIRS_SHOWN])
    if len(pairs) > _PAIRS_SHOWN:
        yield f"(and {plural(len(pairs) - _PAIRS_SHOWN, 'more such pair')}; the report has all)"


def _accuracy_text(results: Results, key: str, n: str, name: str = "accuracy") -> str:
    fractions = cast(dict[str, float | None], results)
    low, high = fixed_percent(fractions[f"{key}_low"]), fixed_percent(fractions[f"{key}_high"])
    return f"{name} {fixed_percent(fractions[key])} (95% CI {low} to {high}, {n})"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"


def _format_fact(name: str, value: float) -> str:
    if name == "loss":
        return f", loss {value:.3f}"
    return f", {name} {100 * value:.0f}%"


def _recipe_row(title: str, text: str, console: Console) -> str:
    """Return a title and its text, wrapped on a terminal and on one line in a pipe."""
    head = f"  {title}".ljust(_RECIPE_INDENT)
    if not console.is_terminal:
        return head + text
    return textwrap.fill(
        text,
        max(console.width, 2 * _RECIPE_INDENT),
        initial_indent=head,
        subsequent_indent=" " * _RECIPE_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
