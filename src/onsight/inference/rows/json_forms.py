"""Rows as JSON lines, or as one JSON object."""

import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from onsight.inference.predictor import Prediction
from onsight.inference.rows.columns import KNOWN, Columns
from onsight.inference.rows.counts import Counts
from onsight.inference.rows.form import WholeLines


class JsonLines:
    """A JSON object for each image, a line each."""

    name = "jsonl"
    head = b""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def rows(self, predictions: Sequence[Prediction]) -> bytes:
        """Rows that follow those before."""
        return b"".join(
            json.dumps(self._columns.record(one)).encode() + b"\n" for one in predictions
        )

    def tail(self, counts: Counts) -> bytes:
        """Nothing."""
        return b""

    def read(self, file: BinaryIO) -> Iterator[tuple[Prediction, int]]:
        """The whole rows from here on, each with the offset of its end."""
        lines = WholeLines(file)
        try:
            for line in lines:
                row = json.loads(line)
                path, predicted, probability, problem = (row[name] for name in KNOWN)
                yield Prediction(path, predicted, probability, problem, None), lines.end
        except (ValueError, TypeError, KeyError):  # a row that was cut short
            return


class Json:
    """One JSON object with all rows and their counts."""

    head = b'{"predictions": ['

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._comma = b""

    def rows(self, predictions: Sequence[Prediction]) -> bytes:
        """Rows that follow those before."""
        rows = b", ".join(json.dumps(self._columns.record(one)).encode() for one in predictions)
        comma, self._comma = self._comma, b", "
        return comma + rows

    def tail(self, counts: Counts) -> bytes:
        """The counts."""
        facts = {"images": counts.images, "used": counts.used, "problems": counts.problems}
        if self._columns.has_unsure:
            facts["unsure"] = counts.unsure
        return b"], " + json.dumps(facts).encode()[1:] + b"\n"
