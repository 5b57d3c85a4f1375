"""The features of images, in a file for other programs: npz, or Parquet."""

import json
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from onsight.errors import ConfigError, DataError, OutputError
from onsight.files import check_output
from onsight.inference.feature_files import FeatureColumns, NpzFile
from onsight.inference.inputs.files import input_paths
from onsight.inference.inputs.input import file_input
from onsight.inference.job import files_of_model
from onsight.inference.predictor import Batches, Prediction, Predictor, load
from onsight.inference.rows.counts import Counts
from onsight.inference.rows.parquet_file import ParquetFile
from onsight.inference.rows.sink import Sink
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
    batches: Batches = Predictor.batches,
) -> None:
    """Compute the features of every input and write them to a file in the order of the inputs.

    batches: what predicts. Raises DataError if no input can be used; UserError, DiskError.
    """
    _check(out)
    reporter = Reporter()
    inputs = input_paths(paths)
    check_output("--out", out, model=files_of_model(model), input=[*paths, *inputs])
    predictor = load(model, device=device, module=module)
    counts, wide = Counts(), 0
    sink: Sink = NpzFile(out) if _is_npz(out) else ParquetFile(out, FeatureColumns())
    try:
        with reporter.bar("embed", len(inputs)) as bar:
            for batch in batches(predictor, map(file_input, inputs), True):
                sink.write(batch)
                _tell_problems(reporter, batch, counts.problems)
                counts.add(batch)
                wide = wide or max(
                    0 if one.features is None else len(one.features) for one in batch
                )
                bar.advance(len(batch))
        if not counts.used:
            inputs_in_words = plural(counts.images, "input")
            raise DataError(f"none of the {inputs_in_words} can be used: {counts.first_problem}")
        sink.finish(counts)
    finally:
        sink.close()
    facts = {"images": counts.images, "used": counts.used, "problems": counts.problems}
    if as_json:
        print(json.dumps({**facts, "features": wide, "out": str(out)}))
        return
    if counts.problems > _SHOWN:
        reporter.warn(f"{counts.problems - _SHOWN:,} more not used; the file lists them all")
    used = f"{counts.used:,} embedded, {wide:,} features each"
    reporter.say(f"{used}; {counts.problems:,} could not be used")
    print(out)


def _is_npz(out: Path) -> bool:
    return out.suffix.lower() == ".npz"


def _check(out: Path) -> None:
    """Raise OutputError, ConfigError if a file of this name cannot be written."""
    if out.suffix.lower() not in (".npz", ".parquet"):
        raise OutputError(f"--out must end in .npz or .parquet, unlike {out}")
    if _is_npz(out):
        return
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"writing {out} needs pyarrow: pip install 'onsight[parquet]', or choose --out NAME.npz"
        ) from error


def _tell_problems(reporter: Reporter, batch: Sequence[Prediction], told: int) -> None:
    """Name the first inputs that cannot be used."""
    problems = [one for one in batch if one.problem is not None]
    for one in problems[: max(0, _SHOWN - told)]:
        reporter.warn(f"not used: {one.path}: {one.problem}")
