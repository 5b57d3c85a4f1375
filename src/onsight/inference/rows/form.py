"""How rows become text, batch by batch."""

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Protocol

from onsight.inference.predictor import Prediction
from onsight.inference.rows.counts import Counts


class Form(Protocol):
    """How rows are written; paths that are not UTF-8 keep their bytes, or are escaped."""

    head: bytes

    def rows(self, predictions: Sequence[Prediction]) -> bytes:
        """Rows that follow those before."""
        ...

    def tail(self, counts: Counts) -> bytes:
        """What follows the last row."""
        ...


class ResumableForm(Form, Protocol):
    """One whose rows can be read again."""

    name: str

    def read(self, file: BinaryIO) -> Iterator[tuple[Prediction, int]]:
        """The whole rows from here on, each with the offset of its end."""
        ...


class WholeLines(Iterable[bytes]):
    """The lines of a file that have an end, and the offset of the end of the last one given."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.end = file.tell()

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            if not line.endswith(b"\n"):
                return
            self.end += len(line)
            yield line
