"""The features of pictures, in a file for other programs: npz, or Parquet.

D features, m problems, n usable pictures.
"""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from onsight.errors import ConfigError, DataError, OutputError
from onsight.files import check_writable, write_atomically
from onsight.inference.inputs.files import input_paths
from onsight.inference.predictor import Prediction, load
from onsight.report.console import Reporter
from onsight.words import plural

_SHOWN = 3  # problems


def embed_files(
    model: Path,
    paths: Sequence[str],
    out: Path,
    *,
    device: str = "auto",
    module: str | nn.Module | None = None,
    as_json: bool = False,
) -> None:
    """Compute the features of every input and write them to a file in the order of the inputs.

    Raises DataError if no input can be used; UserError, DiskError.
    """
    encode = _encoder(out)
    reporter = Reporter()
    inputs = input_paths(paths)
    check_writable(out)
    predictor = load(model, device=device, module=module)
    predictions = []
    with reporter.bar("embed", len(inputs)) as bar:
        for prediction in predictor.predictions(inputs, features=True):
            predictions.append(prediction)
            bar.advance(1)
    facts = _facts(predictions)
    write_atomically(out, encode(predictions))
    if as_json:
        print(json.dumps({**facts, "out": str(out)}))
    else:
        _tell(reporter, predictions, facts)
        print(out)


def _encoder(out: Path) -> Callable[[Sequence[Prediction]], bytes]:
    """What turns predictions into a file of this name. Raises OutputError, ConfigError."""
    suffix = out.suffix.lower()
    if suffix not in (".npz", ".parquet"):
        raise OutputError(f"--out must end in .npz or .parquet, unlike {out}")
    if suffix == ".npz":
        return _as_npz
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"writing {out} needs pyarrow: pip install 'onsight[parquet]', or choose --out NAME.npz"
        ) from error
    return _as_parquet


def _facts(predictions: Sequence[Prediction]) -> dict[str, int]:
    """Counts, and the number of features. Raises DataError if no input can be used."""
    used = [one for one in predictions if one.features is not None]
    if not used:
        first = predictions[0]
        raise DataError(
            f"none of the {plural(len(predictions), 'input')} can be used: "
            f"{first.path}: {first.problem}"
        )
    counts = {"images": len(predictions), "used": len(used)}
    wide = 0 if used[0].features is None else len(used[0].features)
    return {**counts, "problems": len(predictions) - len(used), "features": wide}


def _tell(reporter: Reporter, predictions: Sequence[Prediction], facts: dict[str, int]) -> None:
    problems = [one for one in predictions if one.problem is not None]
    for one in problems[:_SHOWN]:
        reporter.warn(f"not used: {one.path}: {one.problem}")
    if len(problems) > _SHOWN:
        reporter.warn(f"{len(problems) - _SHOWN:,} more not used; the file lists them all")
    used = f"{facts['used']:,} embedded, {facts['features']:,} features each"
    reporter.say(f"{used}; {facts['problems']:,} could not be used")


def _as_npz(predictions: Sequence[Prediction]) -> bytes:
    """Arrays that NumPy loads without pickle: a row per usable picture, and the problems (m, 2)."""
    used = [one for one in predictions if one.features is not None]
    problems = [(one.path, one.problem) for one in predictions if one.problem is not None]
    data = io.BytesIO()
    np.savez(
        data,
        paths=np.array([one.path for one in used], np.str_),
        features=np.array([one.features for one in used], np.float32),
        predicted=np.array([one.predicted for one in used], np.str_),
        probability=np.array([one.probability for one in used], np.float32),
        problems=np.array(problems, np.str_).reshape(-1, 2),
    )
    return data.getvalue()


def _as_parquet(predictions: Sequence[Prediction]) -> bytes:
    """A row per input; one that cannot be used has nulls and its problem."""
    import pyarrow
    from pyarrow.parquet import write_table

    columns = {
        "path": pyarrow.array([_utf8(one.path) for one in predictions], pyarrow.string()),
        "features": pyarrow.array(
            [one.features for one in predictions], pyarrow.list_(pyarrow.float32())
        ),
        "predicted": pyarrow.array([one.predicted for one in predictions], pyarrow.string()),
        "probability": pyarrow.array([one.probability for one in predictions], pyarrow.float32()),
        "problem": pyarrow.array([one.problem for one in predictions], pyarrow.string()),
    }
    data = pyarrow.BufferOutputStream()
    write_table(pyarrow.table(columns), data)
    return bytes(data.getvalue())


def _utf8(path: str) -> str:
    """A path as Parquet can hold it; bytes that are not UTF-8 show as \\xe9."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
