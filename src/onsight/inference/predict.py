"""`onsight predict`: write a row for every input as soon as it is predicted."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from onsight.errors import ConfigError, DiskError, OutputError
from onsight.files import check_output, refuse_foreign, refuse_inside_data, refuse_replacing
from onsight.inference.images import Input, no_inputs
from onsight.inference.inputs import STDIN, find_inputs
from onsight.inference.predictor import Batches, Prediction, Predictor, list_model_files, load
from onsight.inference.resumable_file import (
    ResumableFile,
    check_not_interrupted,
    check_resumable,
    clear_completed_job,
    describe_job,
    discard,
    job_path,
    rows_path,
)
from onsight.inference.row_formats import (
    FIRST_COLUMNS,
    MARKS,
    CsvFormat,
    JsonFormat,
    JsonLinesFormat,
    ResumableFormat,
    RowColumns,
    RowCounts,
    RowFormat,
    TextFormat,
)
from onsight.inference.sinks import (
    ParquetFile,
    Sink,
    Stdout,
    refuse_foreign_parquet,
    require_pyarrow,
)
from onsight.report.console import Reporter
from onsight.text import duration, plural

if TYPE_CHECKING:
    from torch import nn

STDOUT = "-"

_GRID_IMAGES = 64
_FILE_FORMATS: dict[str, Callable[[RowColumns], ResumableFormat]] = {
    "csv": CsvFormat,
    "jsonl": JsonLinesFormat,
}
_STDOUT_FORMATS: dict[str, Callable[[RowColumns], RowFormat]] = {
    **_FILE_FORMATS,
    "json": JsonFormat,
}


@dataclass(frozen=True)
class OutputOptions:
    """What `onsight predict` writes, and where. By default, lines on stdout."""

    csv: str | None = None  # a file, or - for stdout
    jsonl: str | None = None  # a file, or - for stdout
    parquet: Path | None = None
    as_json: bool = False  # one JSON object on stdout
    top: int | None = None  # how many of the most probable classes to include in a row
    min_confidence: float | None = None  # below this probability the class is withheld
    grid: Path | None = None  # a PNG file
    heat: Path | None = None  # a new folder, for a heat map of each image
    resume: bool = False

    @property
    def text_files(self) -> dict[str, Path]:
        """The text files to write, by format."""
        paths = {"csv": self.csv, "jsonl": self.jsonl}
        return {name: Path(path) for name, path in paths.items() if path and path != STDOUT}

    @property
    def files(self) -> dict[str, Path]:
        """All files to write, by flag."""
        others = {"--parquet": self.parquet, "--save-grid": self.grid}
        texts = {f"--{name}": path for name, path in self.text_files.items()}
        return texts | {flag: path for flag, path in others.items() if path}

    @property
    def on_stdout(self) -> list[str]:
        """The formats to write to stdout."""
        flags = {"csv": self.csv == STDOUT, "jsonl": self.jsonl == STDOUT, "json": self.as_json}
        return [name for name, is_set in flags.items() if is_set]

    def check(self, model: Path, inputs: Sequence[str]) -> None:
        """Refuse options that cannot work, before the model is loaded.

        inputs: as for find_inputs. Raises ConfigError, OutputError, DiskError.
        """
        if self.top is not None and self.top < 1:
            raise ConfigError(f"--top {self.top} must be at least 1")
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 1:
            raise ConfigError(f"--min-confidence {self.min_confidence} must be from 0 to 1")
        if len(self.on_stdout) > 1:
            flags = " and ".join(f"--{name}" for name in self.on_stdout)
            raise ConfigError(f"{flags} cannot both go to stdout: write one of them to a file")
        if len(set(map(os.path.realpath, self.files.values()))) < len(self.files):
            raise ConfigError("two kinds of output cannot go to the same file")
        self._check_files(model, ["/dev/stdin" if name == STDIN else name for name in inputs])
        is_single = len(self.files) == 1 and self.text_files
        if self.resume and (not is_single or self.on_stdout or self.heat):
            raise ConfigError(
                "--resume continues a single file of --csv or --jsonl: remove all other output "
                "options (--parquet, --json, --save-grid, --heatmap)"
            )
        check = check_resumable if self.resume else check_not_interrupted
        for path in self.text_files.values():
            check(path)

    def _check_files(self, model: Path, inputs: Sequence[str]) -> None:
        for flag, path in self.files.items():
            check_output(flag, path, model=list_model_files(model), input=inputs)
        for name, path in self.text_files.items():
            refuse_foreign(path, MARKS[name], "a file of predictions", f"--{name}")
        if self.parquet:
            require_pyarrow(self.parquet, "--csv or --jsonl")
            kind = "a file of predictions"
            refuse_foreign_parquet(self.parquet, FIRST_COLUMNS, kind, "--parquet")
        if self.grid:
            from onsight.inference.grid import check_grid_name  # loads matplotlib

            check_grid_name(self.grid)
        if self.heat:
            from onsight.inference.heat_files import check_heat_folder  # loads torch

            for name in inputs:
                refuse_inside_data(self.heat, name, "../maps", "--heatmap")
            check_heat_folder(self.heat)


class OpenOutput(NamedTuple):
    """The outputs, open for writing, and the inputs whose rows they still need."""

    sinks: list[Sink]
    inputs: Iterator[Input]  # without the inputs of rows that are already written
    counts: RowCounts  # of the rows that are already written


def predict_files(
    model: Path,
    paths: Sequence[str],
    options: OutputOptions,
    *,
    device: str = "auto",
    module: "str | nn.Module | None" = None,
    member: str = "",
    batches: Batches = Predictor.batches,
) -> None:
    """Predict the inputs in order, and write a row for each to every output.

    Inputs and rows are streamed, so memory does not grow with their number. batches: the function
    that predicts an iterator of inputs. Raises DataError if no input can be used; UserError,
    DiskError.
    """
    reporter = Reporter()
    options.check(model, paths)
    predictor = load(model, device=device, module=module, member=member)
    inputs = _skip_outputs(_require_inputs(find_inputs(paths)), options)
    columns = RowColumns(predictor.classes, options.top or 0, options.min_confidence is not None)
    job = describe_job(model, member, predictor.runner)
    with _resume_hint(options, reporter), ExitStack() as stack:
        output = _open_output(options, columns, job, inputs, stack)
        if output is None:
            reporter.say("the file is complete")
            return
        try:
            first_rows = _write_rows(predictor, output, options, reporter, batches)
        except OutputError:  # an input is an output file, so a resumed run would fail again
            for path in options.text_files.values():
                discard(path)
            raise
        for sink in output.sinks:
            sink.finish(output.counts)
    if options.grid:
        from onsight.inference.grid import save_grid  # loads matplotlib

        save_grid(options.grid, first_rows, predictor)
        total = plural(output.counts.images, "input")
        reporter.say(f"{options.grid} shows the first {len(first_rows):,} of {total}")
    output.counts.require_used()


def _require_inputs(inputs: Iterator[Input]) -> Iterator[Input]:
    """Return the inputs unchanged. Raises DataError if there are none."""
    first = next(inputs, None)
    if first is None:
        raise no_inputs()
    return chain([first], inputs)


def _skip_outputs(inputs: Iterator[Input], options: OutputOptions) -> Iterator[Input]:
    """Yield the inputs, except for the hidden files of rows that this command writes.

    Raises OutputError for an input that an output would replace.
    """
    existing = {flag: path for flag, path in options.files.items() if os.path.exists(path)}
    hidden = {
        os.path.abspath(name(path))
        for path in options.text_files.values()
        for name in (rows_path, job_path)
    }
    hidden_names = tuple(os.path.basename(path) for path in hidden)
    for image in inputs:
        if image.name.endswith(hidden_names) and os.path.abspath(image.name) in hidden:
            continue
        if image.file:
            for flag, path in existing.items():
                refuse_replacing(flag, path, input=image.name)
        yield image


@contextmanager
def _resume_hint(options: OutputOptions, reporter: Reporter) -> Iterator[None]:
    """After an interruption, report which file has the rows so far and how to continue."""
    try:
        yield
    except (KeyboardInterrupt, DiskError):
        for path in map(rows_path, options.text_files.values()):
            if path.exists():
                reporter.say(
                    f"{path} has the rows so far; to continue, repeat the command with --resume"
                )
        raise


def _open_output(
    options: OutputOptions,
    columns: RowColumns,
    job: Mapping[str, Any],
    inputs: Iterator[Input],
    stack: ExitStack,
) -> OpenOutput | None:
    """Open all outputs; None if the file to resume is already complete.

    stack: is given the closing of every output. Raises OutputError if the rows so far come from
    another job, DiskError.
    """
    output = OpenOutput([], inputs, RowCounts())
    job = {**job, "columns": columns.header, "--min-confidence": options.min_confidence}
    for name, path in options.text_files.items():
        file_job = {**job, "format": name}
        if options.resume and clear_completed_job(path, file_job):
            return None
        file = ResumableFile(path, _FILE_FORMATS[name](columns), file_job)
        stack.callback(file.close)
        if options.resume:
            output = OpenOutput([], *file.resume(inputs))
        else:
            file.start()
        output.sinks.append(file)
    if options.parquet:
        table = ParquetFile(options.parquet, columns.schema, columns.record)
        stack.callback(table.close)
        output.sinks.append(table)
    output.sinks.extend(Stdout(_STDOUT_FORMATS[name](columns)) for name in options.on_stdout)
    if not output.sinks:
        output.sinks.append(Stdout(TextFormat(columns)))
    return output


def _write_rows(
    predictor: Predictor,
    output: OpenOutput,
    options: OutputOptions,
    reporter: Reporter,
    batches: Batches,
) -> list[tuple[Prediction, Input]]:
    """Predict all inputs and write their rows; return the first predictions, for a grid."""
    counts, resumed = output.counts, output.counts.images
    first_rows: list[tuple[Prediction, Input]] = []
    inputs, in_order = tee(output.inputs)
    heat = None
    if options.heat:
        from onsight.inference.heat_files import HeatFolder  # loads torch

        heat = HeatFolder(options.heat, predictor)
    started = time.monotonic()
    with reporter.bar("predict", None) as bar:
        for batch in batches(predictor, inputs, False):
            rows = [_withhold_class(row, options.min_confidence) for row in batch]
            images = list(islice(in_order, len(rows)))
            for sink in output.sinks:
                sink.write(rows)
            if heat:
                heat.write(rows, images, counts.images + 1)
            counts.add(rows)
            bar.advance(len(rows))
            pairs = list(zip(rows, images, strict=True))
            first_rows += pairs[: _GRID_IMAGES - len(first_rows)]
    reporter.say(_summary(counts, resumed, time.monotonic() - started))
    for path in filter(None, (*options.text_files.values(), options.parquet)):
        reporter.say(f"rows: {path}")
    if heat:
        reporter.say(f"{plural(heat.count, 'heat map')} written to {options.heat}")
    return first_rows


def _withhold_class(prediction: Prediction, min_confidence: float | None) -> Prediction:
    """Return the prediction without its class if the probability is below min_confidence."""
    if prediction.probability is None or prediction.probability >= (min_confidence or 0):
        return prediction
    return replace(prediction, predicted=None)


def _summary(counts: RowCounts, resumed: int, seconds: float) -> str:
    parts = [f"{counts.used - counts.unsure:,} predicted"]
    parts += [f"{counts.unsure:,} unsure"] if counts.unsure else []
    parts.append(f"{counts.problems:,} could not be used")
    new = counts.images - resumed
    old = f"{resumed:,} already done; " if resumed else ""
    rate = f"{new / seconds:,.0f} images/s"
    return f"{', '.join(parts)}; {old}{new:,} in {duration(seconds)}, {rate}"
