"""`onsight embed`: the features of images in a file for other programs, .npz or Parquet.

D features, m problems, n usable images.
"""

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from onsight.errors import OutputError
from onsight.files import check_output, refuse_foreign, write_atomically
from onsight.inference.images import file_input
from onsight.inference.inputs import list_files
from onsight.inference.predictor import Batches, Prediction, Predictor, list_model_files, load
from onsight.inference.row_formats import RowCounts
from onsight.inference.sinks import ParquetFile, Sink, refuse_foreign_parquet, require_pyarrow
from onsight.report.console import Reporter

_MAX_WARNINGS = 3  # inputs that cannot be used
_COLUMNS = ("path", "features", "predicted", "probability", "problem")
_ARRAYS = ["paths", "features", "predicted", "probability", "problems"]
_KIND = "a file of features"


def embed_files(
    model: Path,
    paths: Sequence[str],
    out: Path,
    *,
    device: str = "auto",
    module: str | nn.Module | None = None,
    member: str = "",
    as_json: bool = False,
    batches: Batches = Predictor.batches,
) -> None:
    """Write the features of every input to a file, in the order of the inputs.

    batches: computes the predictions. Raises DataError if no input can be used; UserError,
    DiskError.
    """
    is_npz = out.suffix.lower() == ".npz"
    if not is_npz:
        if out.suffix.lower() != ".parquet":
            raise OutputError(f"--out {out} must end in .npz or .parquet")
        require_pyarrow(out, "--out NAME.npz")
    reporter = Reporter()
    inputs = list_files(paths)
    check_output("--out", out, model=list_model_files(model), input=[*paths, *inputs])
    if is_npz:
        refuse_foreign(out, _has_our_arrays, _KIND)
    else:
        refuse_foreign_parquet(out, _COLUMNS, _KIND, "--out")
    predictor = load(model, device=device, module=module, member=member)
    counts, width = RowCounts(), 0
    sink: Sink = NpzFile(out) if is_npz else _open_parquet(out)
    try:
        with reporter.bar("embed", len(inputs)) as bar:
            for rows in batches(predictor, map(file_input, inputs), True):
                sink.write(rows)
                _warn(reporter, rows, counts.problems)
                counts.add(rows)
                width = width or max(
                    0 if row.features is None else len(row.features) for row in rows
                )
                bar.advance(len(rows))
        counts.require_used()
        sink.finish(counts)
    finally:
        sink.close()
    if note := predictor.feature_note():
        reporter.say(note)
    facts = {"images": counts.images, "used": counts.used, "problems": counts.problems}
    if as_json:
        print(json.dumps({**facts, "features": width, "out": str(out)}))
        return
    if counts.problems > _MAX_WARNINGS:
        reporter.warn(f"{counts.problems - _MAX_WARNINGS:,} more not used; the file lists them all")
    embedded = f"{counts.used:,} embedded, {width:,} features each"
    reporter.say(f"{embedded}; {counts.problems:,} could not be used")
    print(out)


class NpzFile(Sink):
    """Arrays that numpy.load reads without pickle: usable images (n,), and problems (m, 2).

    All rows are in memory until the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[Prediction] = []

    def write(self, rows: Sequence[Prediction]) -> None:
        """Collect more rows."""
        self._rows += rows

    def finish(self, counts: RowCounts) -> None:
        """Write the file."""
        used = [row for row in self._rows if row.features is not None]
        problems = [(row.path, row.problem) for row in self._rows if row.problem is not None]
        data = io.BytesIO()
        np.savez(
            data,
            paths=np.array([row.path for row in used], np.str_),
            features=np.array([row.features for row in used], np.float32),
            predicted=np.array([row.predicted for row in used], np.str_),
            probability=np.array([row.probability for row in used], np.float32),
            problems=np.array(problems, np.str_).reshape(-1, 2),
        )
        write_atomically(self._path, data.getvalue())


def _open_parquet(out: Path) -> ParquetFile:
    """Create a Parquet file with a row per input, whether usable or not."""
    import pyarrow

    text, number = pyarrow.string(), pyarrow.float32()
    types = (text, pyarrow.list_(number), text, number, text)
    schema = pyarrow.schema(list(zip(_COLUMNS, types, strict=True)))
    return ParquetFile(out, schema, lambda row: {name: getattr(row, name) for name in _COLUMNS})


def _has_our_arrays(out: Path) -> bool:
    """Return whether a file is an .npz file with the arrays of `NpzFile`."""
    try:
        with zipfile.ZipFile(out) as file:
            return [name.removesuffix(".npy") for name in file.namelist()] == _ARRAYS
    except (OSError, zipfile.BadZipFile):
        return False


def _warn(reporter: Reporter, rows: Sequence[Prediction], warned: int) -> None:
    problems = [row for row in rows if row.problem is not None]
    for row in problems[: max(0, _MAX_WARNINGS - warned)]:
        reporter.warn(f"not used: {row.path}: {row.problem}")
