"""Opening all that rows are written to, and finding where an interrupted run goes on."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from onsight.inference.inputs.input import Input
from onsight.inference.rows.columns import Columns
from onsight.inference.rows.counts import Counts
from onsight.inference.rows.csv_form import Csv
from onsight.inference.rows.form import Form, ResumableForm
from onsight.inference.rows.json_forms import Json, JsonLines
from onsight.inference.rows.lines import Lines
from onsight.inference.rows.output_options import OutputOptions
from onsight.inference.rows.parquet_file import ParquetFile
from onsight.inference.rows.partial_file import PartialFile, is_complete
from onsight.inference.rows.sink import Sink, Stdout

_FILES: dict[str, Callable[[Columns], ResumableForm]] = {"csv": Csv, "jsonl": JsonLines}
_ON_STDOUT: dict[str, Callable[[Columns], Form]] = {**_FILES, "json": Json}


class OpenOutput(NamedTuple):
    """The open sinks, the inputs that have no row yet, and the counts of those that have one."""

    sinks: list[Sink]
    inputs: Iterator[Input]
    counts: Counts


def open_output(
    options: OutputOptions,
    columns: Columns,
    job: Mapping[str, Any],
    inputs: Iterator[Input],
    until_closed: ExitStack,
) -> OpenOutput | None:
    """Open what is wanted, and resume if that is wanted; None if there is nothing left to do.

    job: as `describe_job` gives it; until_closed: closes what was opened. Raises OutputError for
    rows of another job, DiskError.
    """
    opened = OpenOutput([], inputs, Counts())
    job = {**job, "columns": columns.header, "--min-confidence": options.min_confidence}
    for name, path in options.text_files.items():
        own_job = {**job, "format": name}
        if options.resume and is_complete(path, own_job):
            return None
        file = PartialFile(path, _FILES[name](columns), own_job)
        until_closed.callback(file.close)
        if options.resume:
            opened = OpenOutput([], *file.resume(inputs))
        else:
            file.begin()
        opened.sinks.append(file)
    if options.parquet:
        table = ParquetFile(options.parquet, columns)
        until_closed.callback(table.close)
        opened.sinks.append(table)
    opened.sinks.extend(Stdout(_ON_STDOUT[name](columns)) for name in options.on_stdout)
    if not opened.sinks:
        opened.sinks.append(Stdout(Lines(columns)))
    return opened
