"""Predictions as rows of text: CSV, JSON lines, JSON, or lines for a terminal.

K classes.
"""

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

from onsight.errors import DataError
from onsight.files import csv_text, read_cell, safe_cell
from onsight.inference.predictor import Prediction, top_classes
from onsight.text import fixed_percent, none_usable, one_line
from onsight.untrusted import parse_json

FIRST_COLUMNS = ("path", "predicted", "probability", "problem")  # read again in a resumed file
_SCALARS = (*FIRST_COLUMNS, "out_of_distribution", "score")
MARKS = {"csv": ",".join(FIRST_COLUMNS).encode(), "jsonl": b', "predicted": '}  # at the start
_LINE_BYTES = 2**27  # longest line that is read again; with 21,000 classes, 1 MB


@dataclass(frozen=True)
class RowColumns:
    """The columns of a row, the same in every format."""

    classes: Sequence[str]
    top: int = 0  # how many of the most probable classes to include
    has_unsure: bool = False

    @cached_property
    def header(self) -> list[str]:
        """The column names of a flat table, such as CSV."""
        ranks = range(1, min(self.top, len(self.classes)) + 1)
        numbered = [f"{name}_{rank}" for rank in ranks for name in ("class", "probability")]
        return [*_SCALARS, *(["unsure"] if self.has_unsure else []), *numbered]

    def cells(self, prediction: Prediction) -> list[str]:
        """Return a row of a flat table as text, with empty cells for missing values."""
        flag, score = prediction.out_of_distribution, prediction.score
        cells = [
            prediction.path,
            prediction.predicted or "",
            _decimals(prediction.probability),
            prediction.problem or "",
            "" if flag is None else str(flag).lower(),
            "" if score is None else f"{score:.6g}",
        ]
        if self.has_unsure:
            cells.append("" if prediction.problem else str(prediction.unsure).lower())
        for named in self._top_classes(prediction) if self.top else ():
            cells += [named["class"], _decimals(named["probability"])]
        cells += [""] * (len(self.header) - len(cells))
        return list(map(safe_cell, self.header, cells))

    def record(self, prediction: Prediction) -> dict[str, Any]:
        """Return a row as plain values by column name, for JSON and Parquet."""
        row: dict[str, Any] = {name: getattr(prediction, name) for name in _SCALARS}
        if self.has_unsure:
            row["unsure"] = None if prediction.problem else prediction.unsure
        if self.top:
            row["probabilities"] = None if prediction.problem else self._top_classes(prediction)
        return row

    @property
    def schema(self) -> Any:
        """The pyarrow.Schema of the records."""
        import pyarrow

        text, number = pyarrow.string(), pyarrow.float32()
        fields = {"path": text, "predicted": text, "probability": number, "problem": text}
        fields |= {"out_of_distribution": pyarrow.bool_(), "score": number}
        if self.has_unsure:
            fields["unsure"] = pyarrow.bool_()
        if self.top:
            ranked = pyarrow.struct({"class": text, "probability": number})
            fields["probabilities"] = pyarrow.list_(ranked)
        return pyarrow.schema(fields)

    def _top_classes(self, prediction: Prediction) -> list[dict[str, Any]]:
        """Return the most probable classes, best first; ties are in the order of the classes."""
        if prediction.probabilities is None:
            return []
        best = top_classes(self.classes, prediction.probabilities, self.top)
        return [{"class": name, "probability": value} for name, value in best]


@dataclass
class RowCounts:
    """How many rows were written, by outcome."""

    images: int = 0
    problems: int = 0  # inputs that could not be used
    unsure: int = 0
    first_problem: str = ""  # as "path: reason"

    @property
    def used(self) -> int:
        """The number of images that the model predicted."""
        return self.images - self.problems

    def add(self, rows: Sequence[Prediction]) -> None:
        """Count more rows."""
        self.images += len(rows)
        for row in rows:
            if row.problem is not None:
                self.problems += 1
                self.first_problem = self.first_problem or f"{row.path}: {row.problem}"
            else:
                self.unsure += row.unsure

    def require_used(self) -> None:
        """Raise DataError, with the first problem, if no input could be used."""
        if not self.used:
            raise DataError(f"{none_usable(self.images, 'input')}: {self.first_problem}")


class RowFormat(ABC):
    """Text that holds a row per prediction: a head, rows, and a tail.

    A path that is not valid UTF-8 keeps its bytes, or is escaped where the format requires UTF-8.
    """

    head = b""

    def __init__(self, columns: RowColumns) -> None:
        self.columns = columns

    @abstractmethod
    def rows(self, predictions: Sequence[Prediction]) -> bytes:
        """Return the text of more rows."""

    def tail(self, counts: RowCounts) -> bytes:
        """Return the text that follows the last row."""
        return b""


class ResumableFormat(RowFormat):
    """A format without a tail whose rows can be read again."""

    def read(self, file: BinaryIO) -> Iterator[tuple[Prediction, int]]:
        """Yield the complete rows from the current position, each with the offset of its end."""
        lines = _WholeLines(file)
        with suppress(csv.Error, ValueError, TypeError, KeyError):  # a truncated row
            for path, predicted, probability, problem in self._parse(lines):
                yield Prediction(path, predicted, probability, problem, None), lines.end

    @abstractmethod
    def _parse(self, lines: Iterable[bytes]) -> Iterator[list[Any]]:
        """Yield the values of FIRST_COLUMNS of each row. Raises several errors."""


class CsvFormat(ResumableFormat):
    """CSV with a header."""

    def __init__(self, columns: RowColumns) -> None:
        super().__init__(columns)
        self.head = csv_text([columns.header]).encode()

    def rows(self, predictions: Sequence[Prediction]) -> bytes:
        """Return the text of more rows."""
        text = csv_text(map(self.columns.cells, predictions))
        return text.encode("utf-8", "surrogateescape")

    def _parse(self, lines: Iterable[bytes]) -> Iterator[list[Any]]:
        rows = csv.reader((line.decode("utf-8", "surrogateescape") for line in lines), strict=True)
        for row in rows:
            path, predicted, probability, problem = map(read_cell, FIRST_COLUMNS, row)
            value = float(probability) if probability else None
            yield [path, predicted or None, value, problem or None]


class JsonLinesFormat(ResumableFormat):
    """A JSON object per line."""

    def rows(self, predictions: Sequence[Prediction]) -> bytes:
        """Return the text of more rows."""
        return b"".join(
            json.dumps(self.columns.record(prediction)).encode() + b"\n"
            for prediction in predictions
        )

    def _parse(self, lines: Iterable[bytes]) -> Iterator[list[Any]]:
        for line in lines:
            row = parse_json(line, "surrogateescape")
            yield [row[name] for name in FIRST_COLUMNS]


class JsonFormat(RowFormat):
    """One JSON object with all rows and their counts."""

    head = b'{"predictions": ['

    def __init__(self, columns: RowColumns) -> None:
        super().__init__(columns)
        self._separator = b""

    def rows(self, predictions: Sequence[Prediction]) -> bytes:
        """Return the text of more rows."""
        rows = b", ".join(
            json.dumps(self.columns.record(prediction)).encode() for prediction in predictions
        )
        separator, self._separator = self._separator, b", "
        return separator + rows

    def tail(self, counts: RowCounts) -> bytes:
        """Return the counts, which close the object."""
        facts = {"images": counts.images, "used": counts.used, "problems": counts.problems}
        if self.columns.has_unsure:
            facts["unsure"] = counts.unsure
        return b"], " + json.dumps(facts).encode()[1:] + b"\n"


class TextFormat(RowFormat):
    """A line per image for people: class, probability, path, and more classes on request."""

    def __init__(self, columns: RowColumns) -> None:
        super().__init__(columns)
        labels = [*columns.classes, *(["unsure"] if columns.has_unsure else [])]
        self._width = max(map(len, labels), default=1)

    def rows(self, predictions: Sequence[Prediction]) -> bytes:
        """Return the text of more rows."""
        return "".join(map(self._line, predictions)).encode("utf-8", "surrogateescape")

    def _line(self, prediction: Prediction) -> str:
        label = "unsure" if prediction.unsure else prediction.predicted or "-"
        top = self.columns.record(prediction).get("probabilities") or []
        classes = ", ".join(f"{row['class']} {fixed_percent(row['probability'])}" for row in top)
        flag = "out of distribution" if prediction.out_of_distribution else ""
        note = prediction.problem or "; ".join(filter(None, (classes, flag)))
        percent = fixed_percent(prediction.probability)
        line = f"{label:<{self._width}}  {percent:>7}  {prediction.path}"
        return one_line(f"{line}  ({note})" if note else line) + "\n"


class _WholeLines(Iterable[bytes]):
    """The lines of a file up to the last line break; `end` is the offset behind the last one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.end = file.tell()

    def __iter__(self) -> Iterator[bytes]:
        while line := self._file.readline(_LINE_BYTES):
            if not line.endswith(b"\n"):
                return
            self.end += len(line)
            yield line


def _decimals(probability: float | None) -> str:
    return "" if probability is None else f"{probability:.6f}"
