"""Where rows go: to stdout, or to a file."""

import sys
from collections.abc import Sequence
from typing import Protocol

from onsight.inference.predictor import Prediction
from onsight.inference.rows.counts import Counts
from onsight.inference.rows.form import Form


class Sink(Protocol):
    """Takes rows as they come. Raises DiskError."""

    def write(self, rows: Sequence[Prediction]) -> None:
        """More rows."""
        ...

    def finish(self, counts: Counts) -> None:
        """There are no more rows: what was written is complete."""
        ...

    def close(self) -> None:
        """Let go of what is open, finished or not."""
        ...


class Stdout:
    """Rows on stdout, which whoever reads it gets batch by batch."""

    def __init__(self, form: Form) -> None:
        self._form = form
        write_to_stdout(form.head)

    def write(self, rows: Sequence[Prediction]) -> None:
        """More rows."""
        write_to_stdout(self._form.rows(rows))

    def finish(self, counts: Counts) -> None:
        """There are no more rows."""
        write_to_stdout(self._form.tail(counts))

    def close(self) -> None:
        """Nothing is left open."""


def write_to_stdout(text: bytes) -> None:
    """Bytes after what was printed before, at once."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
