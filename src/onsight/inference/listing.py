"""Predictions for any number of images, as rows for people or programs, as they are computed."""

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from onsight.errors import DataError, DiskError, OutputError
from onsight.files import refuse_replacing
from onsight.inference.inputs.files import no_files
from onsight.inference.inputs.input import Input
from onsight.inference.inputs.open_inputs import open_inputs
from onsight.inference.job import describe_job
from onsight.inference.predictor import Batches, Prediction, Predictor, load
from onsight.inference.rows.columns import Columns
from onsight.inference.rows.counts import Counts
from onsight.inference.rows.open_output import OpenOutput, open_output
from onsight.inference.rows.output_options import OutputOptions
from onsight.inference.rows.partial_file import discard, job_path, partial_path
from onsight.report.console import Reporter
from onsight.words import duration, plural

if TYPE_CHECKING:
    from torch import nn

    from onsight.inference.heat_files import HeatFolder

_SHOWN = 64  # inputs, in a grid


def list_predictions(
    model: Path,
    paths: Sequence[str],
    options: OutputOptions,
    *,
    device: str = "auto",
    module: "str | nn.Module | None" = None,
    batches: Batches = Predictor.batches,
) -> None:
    """Predict every input in order and write its row, wherever it is wanted.

    No list of inputs or rows is kept, however many there are. batches: what predicts.
    Raises DataError if no input can be used; UserError, DiskError.
    """
    reporter = Reporter()
    options.check(model, paths)
    inputs = _without_outputs(_not_empty(open_inputs(paths)), options)
    predictor = load(model, device=device, module=module)
    columns = Columns(predictor.classes, options.top, options.min_confidence is not None)
    job = describe_job(model, predictor.runner)
    with _telling_of_resume(options, reporter), ExitStack() as until_closed:
        opened = open_output(options, columns, job, inputs, until_closed)
        if opened is None:
            reporter.say("the file is complete")
            return
        try:
            shown = _predict_all(predictor, opened, options, reporter, batches)
        except OutputError:  # an input is the file to write, so no run can go on to the end
            for path in options.text_files.values():
                discard(path)
            raise
        for sink in opened.sinks:
            sink.finish(opened.counts)
    if options.grid:
        _draw(options.grid, shown, predictor, opened.counts, reporter)
    if not opened.counts.used:
        raise DataError(
            f"none of the {plural(opened.counts.images, 'input')} can be used: "
            f"{opened.counts.first_problem}"
        )


@contextmanager
def _telling_of_resume(options: OutputOptions, reporter: Reporter) -> Iterator[None]:
    """Say what is left of an interrupted run."""
    try:
        yield
    except (KeyboardInterrupt, DiskError):
        for path in map(partial_path, options.text_files.values()):
            if path.exists():
                reporter.say(
                    f"{path} keeps the rows so far; with --resume, the same command goes on"
                )
        raise


def _predict_all(
    predictor: Predictor,
    opened: OpenOutput,
    options: OutputOptions,
    reporter: Reporter,
    batches: Batches,
) -> list[tuple[Prediction, Input]]:
    """Write the rows of all inputs; returns the first ones for a grid."""
    counts, known = opened.counts, opened.counts.images
    shown: list[tuple[Prediction, Input]] = []
    under_way: deque[Input] = deque()
    heat = _heat_folder(options.heat, predictor)
    started = time.monotonic()
    with reporter.bar("predict", None) as bar:
        for batch in batches(predictor, _noting(opened.inputs, under_way), False):
            rows = [_withheld(one, options.min_confidence) for one in batch]
            inputs = [under_way.popleft() for _ in rows]
            for sink in opened.sinks:
                sink.write(rows)
            if heat:
                heat.write(rows, inputs, counts.images + 1)
            counts.add(rows)
            bar.advance(len(rows))
            shown += list(zip(rows, inputs, strict=True))[: _SHOWN - len(shown)]
    reporter.say(_summary(counts, known, time.monotonic() - started))
    if heat:
        reporter.say(f"{options.heat} has {plural(heat.count, 'heat map')}")
    return shown


def _heat_folder(folder: Path | None, predictor: Predictor) -> "HeatFolder | None":
    if folder is None:
        return None
    from onsight.inference.heat_files import HeatFolder  # loads torch

    return HeatFolder(folder, predictor)


def _withheld(one: Prediction, least: float | None) -> Prediction:
    """A prediction without its class if its probability is too low."""
    if least is None or one.probability is None or one.probability >= least:
        return one
    return replace(one, predicted=None)


def _summary(counts: Counts, known: int, seconds: float) -> str:
    parts = [f"{counts.used - counts.unsure:,} predicted"]
    parts += [f"{counts.unsure:,} unsure"] if counts.unsure else []
    parts.append(f"{counts.problems:,} could not be used")
    new = counts.images - known
    there = f"{known:,} were there already; " if known else ""
    rate = f"{new / seconds:,.0f} images/s"
    return f"{', '.join(parts)}; {there}{new:,} in {duration(seconds)}, {rate}"


def _draw(
    path: Path,
    shown: Sequence[tuple[Prediction, Input]],
    predictor: Predictor,
    counts: Counts,
    reporter: Reporter,
) -> None:
    from onsight.inference.grid import save_grid  # loads matplotlib

    readers = {one.name: one.read for _, one in shown}
    save_grid(path, [one for one, _ in shown], predictor, lambda name: readers[name]())
    reporter.say(f"{path} shows the first {len(shown):,} of {plural(counts.images, 'input')}")


def _not_empty(inputs: Iterator[Input]) -> Iterator[Input]:
    """The same inputs, the first of which is there. Raises DataError if there is none."""
    first = next(inputs, None)
    if first is None:
        raise no_files()
    return chain([first], inputs)


def _noting(inputs: Iterator[Input], under_way: deque[Input]) -> Iterator[Input]:
    """The same inputs, each noted when it is taken."""
    for one in inputs:
        under_way.append(one)
        yield one


def _without_outputs(inputs: Iterator[Input], options: OutputOptions) -> Iterator[Input]:
    """The inputs but for files that are being written.

    Raises OutputError at one that a finished file would replace.
    """
    existing = {flag: path for flag, path in options.files.items() if os.path.exists(path)}
    written = {
        str(name(path).absolute())
        for path in options.text_files.values()
        for name in (partial_path, job_path)
    }
    endings = tuple(os.path.basename(path) for path in written)
    for one in inputs:
        if endings and one.name.endswith(endings) and os.path.abspath(one.name) in written:
            continue
        if one.file:
            for flag, path in existing.items():
                refuse_replacing(flag, path, input=one.name)
        yield one
