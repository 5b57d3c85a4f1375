"""Features in files: arrays for NumPy, or the columns of a Parquet table.

D features, m problems, n usable images.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onsight.files import write_atomically
from onsight.inference.predictor import Prediction
from onsight.inference.rows.counts import Counts

_NAMES = ("path", "features", "predicted", "probability", "problem")


class FeatureColumns:
    """A row per input; one that cannot be used has nulls and its problem."""

    @property
    def schema(self) -> Any:
        """The names and types of the columns, as pyarrow's Schema."""
        import pyarrow

        text, share = pyarrow.string(), pyarrow.float32()
        types = (text, pyarrow.list_(share), text, share, text)
        return pyarrow.schema(list(zip(_NAMES, types, strict=True)))

    def record(self, one: Prediction) -> dict[str, Any]:
        """A row as plain values by name."""
        return {name: getattr(one, name) for name in _NAMES}


class NpzFile:
    """A Sink of arrays that NumPy loads without pickle; all rows are in memory until the end.

    A row per usable image, features (n, D), and the problems (m, 2).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[Prediction] = []

    def write(self, rows: Sequence[Prediction]) -> None:
        """More rows."""
        self._rows += rows

    def finish(self, counts: Counts) -> None:
        """Write the file."""
        used = [one for one in self._rows if one.features is not None]
        problems = [(one.path, one.problem) for one in self._rows if one.problem is not None]
        data = io.BytesIO()
        np.savez(
            data,
            paths=np.array([one.path for one in used], np.str_),
            features=np.array([one.features for one in used], np.float32),
            predicted=np.array([one.predicted for one in used], np.str_),
            probability=np.array([one.probability for one in used], np.float32),
            problems=np.array(problems, np.str_).reshape(-1, 2),
        )
        write_atomically(self._path, data.getvalue())

    def close(self) -> None:
        """Nothing is open."""
