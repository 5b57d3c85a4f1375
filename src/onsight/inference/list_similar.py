"""Similar images as lines for people, as JSON for programs, or as a PNG."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import nn

from onsight.errors import ConfigError, DataError
from onsight.files import check_output, refuse_replacing
from onsight.inference.inputs.files import input_paths
from onsight.inference.job import files_of_model
from onsight.inference.predictor import Prediction, load
from onsight.inference.rows.sink import write_to_stdout
from onsight.inference.similar import Neighbour, SearchSet, open_search_set
from onsight.report.console import Reporter
from onsight.words import plural

Found = tuple[Prediction, list[Neighbour]]


def list_similar(
    model: Path,
    paths: Sequence[str],
    *,
    among: str | None = None,
    top: int = 5,
    grid: Path | None = None,
    device: str = "auto",
    data_format: str = "auto",
    cache_folder: str = "",
    module: str | nn.Module | None = None,
    as_json: bool = False,
) -> None:
    """Find and print the most similar images for every input in order.

    grid: a PNG file to draw the first ones into. Raises DataError if no input can be used;
    UserError, DiskError.
    """
    if top < 1:
        raise ConfigError(f"--top {top} must be at least 1")
    reporter = Reporter()
    if grid:
        from onsight.inference.grid import check_grid_name  # loads matplotlib
        from onsight.inference.similar_grid import save_similar_grid

        check_grid_name(grid)
    inputs = input_paths(paths)
    if grid:
        read = [*paths, *inputs]
        check_output("--save-grid", grid, model=files_of_model(model), input=read, data=among)
    predictor = load(model, device=device, module=module)
    queries = list(predictor.predictions(inputs, features=True))
    _refuse_unusable(queries)
    searched = open_search_set(
        predictor, among, data_format=data_format, cache_folder=cache_folder, reporter=reporter
    )
    if grid:
        refuse_replacing("--save-grid", grid, data=searched.source.files())
    found = _search(queries, searched, top)
    reporter.say(f"{plural(len(searched.ids), 'image')} searched: {searched.name}")
    if as_json:
        _print(json.dumps({"images": len(searched.ids), "similar": _rows(found)}))
    else:
        _print("\n".join(_lines(found)))
    if grid:
        shown = save_similar_grid(grid, found, predictor.format)
        reporter.say(f"{grid} shows the first {shown:,} of {len(found):,} inputs")


def _print(text: str) -> None:
    """Print with the original bytes of paths that are not UTF-8."""
    write_to_stdout((text + "\n").encode("utf-8", "surrogateescape"))


def _refuse_unusable(queries: Sequence[Prediction]) -> None:
    if all(query.problem is not None for query in queries):
        first = queries[0]
        raise DataError(
            f"none of the {plural(len(queries), 'input')} can be used: "
            f"{first.path}: {first.problem}"
        )


def _search(queries: Sequence[Prediction], searched: SearchSet, top: int) -> list[Found]:
    usable = [query for query in queries if query.problem is None]
    neighbours = iter(searched.nearest(usable, top))
    return [(query, next(neighbours) if query.problem is None else []) for query in queries]


def _lines(found: Sequence[Found]) -> Iterator[str]:
    width = max((len(one.label or "-") for _, near in found for one in near), default=1)
    for query, near in found:
        yield f"{query.path}  ({query.problem or f'predicted {query.predicted}'})"
        for one in near:
            note = "  identical" if one.identical else ""
            yield f"  {one.similarity:6.3f}  {one.label or '-':<{width}}  {one.path}{note}"


def _rows(found: Sequence[Found]) -> list[dict[str, object]]:
    return [
        {
            "path": query.path,
            "predicted": query.predicted,
            "problem": query.problem,
            "neighbours": [
                {
                    "path": one.path,
                    "label": one.label,
                    "similarity": one.similarity,
                    "identical": one.identical,
                }
                for one in near
            ],
        }
        for query, near in found
    ]
