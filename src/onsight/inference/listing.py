"""Predictions as lines for people, or as CSV or JSON for programs."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from onsight.errors import OutputError
from onsight.files import write_atomically
from onsight.inference.paths import input_paths
from onsight.inference.predictor import Prediction, load
from onsight.report.console import Reporter
from onsight.report.tables import csv_text
from onsight.words import fixed_percent, plural

_HEADER = ("path", "predicted", "probability", "problem")


def list_predictions(
    model: Path,
    paths: Sequence[str],
    *,
    csv: str | None = None,
    grid: Path | None = None,
    heat: Path | None = None,
    device: str = "auto",
    module: str | nn.Module | None = None,
    as_json: bool = False,
) -> None:
    """Predict and print a row for every input in order, or write the rows to a CSV file.

    grid: a PNG file to draw the first pictures into; heat: a new folder for a heat map of each
    picture. Raises UserError, DiskError.
    """
    reporter = Reporter()
    if grid:
        from onsight.inference.grid import check_grid_place, save_grid  # loads matplotlib

        check_grid_place(grid)
    if heat:
        from onsight.inference.heat_files import check_heat_folder, save_heat_maps, with_pixels

        check_heat_folder(heat)
    inputs = input_paths(paths)
    for target in (grid, Path(csv) if csv else None):
        if target:
            _refuse_inputs(target, inputs)
    predictor = load(model, device=device, module=module)
    predictions = []
    with reporter.bar("predict", len(inputs)) as bar:
        for prediction in predictor.predictions(inputs):
            predictions.append(replace(prediction, probabilities=None))  # of all, much memory
            bar.advance(1)
    refused = sum(prediction.problem is not None for prediction in predictions)
    if csv and csv != "-":
        write_atomically(Path(csv), _as_csv(predictions).encode("utf-8", "surrogateescape"))
    elif csv == "-":
        print_paths(_as_csv(predictions), end="")
    elif not as_json:
        for line in _lines(predictions):
            print_paths(line)
    reporter.say(f"{len(predictions) - refused:,} predicted, {refused:,} could not be used")
    if grid:
        shown = save_grid(grid, predictions, predictor)
        reporter.say(f"{grid} shows the first {shown:,} of {len(predictions):,} inputs")
    if heat:
        count = save_heat_maps(heat, with_pixels(predictions, predictor), predictor)
        reporter.say(f"{heat} has {plural(count, 'heat map')}")
    if as_json:
        print_paths(_as_json(predictions, refused))


def _lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    width = max((len(p.predicted or "-") for p in predictions), default=1)
    for p in predictions:
        note = f"  ({p.problem})" if p.problem else ""
        yield f"{p.predicted or '-':<{width}}  {fixed_percent(p.probability):>7}  {p.path}{note}"


def _as_csv(predictions: Sequence[Prediction]) -> str:
    rows = (
        (
            p.path,
            p.predicted or "",
            "" if p.probability is None else f"{p.probability:.6f}",
            p.problem or "",
        )
        for p in predictions
    )
    return csv_text(_HEADER, rows)


def _refuse_inputs(target: Path, inputs: Sequence[str]) -> None:
    """Raise OutputError for a file to write that is one of the pictures."""
    if target.exists() and any(os.path.exists(one) and target.samefile(one) for one in inputs):
        raise OutputError(f"{target} is one of the pictures: choose another name")


def _as_json(predictions: Sequence[Prediction], refused: int) -> str:
    rows = [{name: getattr(p, name) for name in _HEADER} for p in predictions]
    counts = {"images": len(rows), "used": len(rows) - refused, "problems": refused}
    return json.dumps({**counts, "predictions": rows})


def print_paths(text: str, end: str = "\n") -> None:
    """Print with the original bytes of paths that are not UTF-8."""
    sys.stdout.flush()
    sys.stdout.buffer.write((text + end).encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()
