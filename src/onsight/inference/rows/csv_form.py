"""Rows as CSV."""

import csv
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from onsight.inference.predictor import Prediction
from onsight.inference.rows.columns import Columns
from onsight.inference.rows.counts import Counts
from onsight.inference.rows.form import WholeLines
from onsight.report.csv_table import csv_text


class Csv:
    """A header, and a row for each image."""

    name = "csv"

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.head = csv_text([columns.header]).encode()

    def rows(self, predictions: Sequence[Prediction]) -> bytes:
        """Rows that follow those before."""
        text = csv_text(map(self._columns.cells, predictions))
        return text.encode("utf-8", "surrogateescape")

    def tail(self, counts: Counts) -> bytes:
        """Nothing."""
        return b""

    def read(self, file: BinaryIO) -> Iterator[tuple[Prediction, int]]:
        """The whole rows from here on, each with the offset of its end."""
        lines = WholeLines(file)
        rows = csv.reader((line.decode("utf-8", "surrogateescape") for line in lines), strict=True)
        try:
            for path, predicted, probability, problem, *_ in rows:
                share = float(probability) if probability else None
                row = Prediction(path, predicted or None, share, problem or None, None)
                yield row, lines.end
        except (csv.Error, ValueError):  # a row that was cut short
            return
