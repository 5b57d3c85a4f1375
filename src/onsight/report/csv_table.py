"""Tables as CSV that every program reads alike."""

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from onsight.files import write_atomically


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV, a line each; the first may be a header."""
    text = io.StringIO()
    plain = csv.writer(text, lineterminator="\n")
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        # Before Python 3.13, a carriage return alone is not quoted, and divides the row.
        has_return = any("\r" in cell for cell in row if isinstance(cell, str))
        (quoted if has_return else plain).writerow(row)
    return text.getvalue()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table atomically; paths that are not UTF-8 keep their bytes."""
    text = csv_text(chain([header], rows))
    write_atomically(path, text.encode("utf-8", "surrogateescape"))
