"""The tables of a run folder, and lenient reading of its files: None for missing or broken ones."""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from onsight import untrusted
from onsight.data.index import Problem
from onsight.data.pack import Pack
from onsight.errors import DataError, OutputError
from onsight.evaluation.predictions import PredictionTable
from onsight.evaluation.results import EpochRow, Results, check_types
from onsight.files import read_cell, write_csv
from onsight.text import joined

DECISIONS = "decisions.jsonl"

Row = dict[str, Any]
Parsed = TypeVar("Parsed")
Render = Callable[[Mapping[str, Any]], object]

PREDICTIONS_MARK = b"path,label,predicted,probability"  # how a table of predictions begins

_PATHS = "surrogateescape"  # how text holds the bytes of paths that are not UTF-8


# --- Writing ---


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Write the unused images: their path, the stage that rejected them, and why."""
    write_csv(path, Problem._fields, problems)


def write_predictions(
    path: Path,
    per_image: PredictionTable,
    pack: Pack,
    folds: NDArray[np.int8] | None = None,
) -> None:
    """Write every evaluated image: path, label, predicted class, its probability, digest.

    folds: the fold of every image in the pack, written as a column if given.
    """
    index = pack.index
    rows = (
        (
            index.locators[int(image)],
            index.classes[label],
            index.classes[predicted],
            f"{confidence:.6f}",
            digest_text(pack.digests[int(image)].tobytes()),
            *(() if folds is None else (folds[image],)),
        )
        for image, label, predicted, confidence in zip(
            per_image.ids, per_image.labels, per_image.predicted, per_image.confidence, strict=True
        )
    )
    header = ("path", "label", "predicted", "probability", "digest")
    write_csv(path, header if folds is None else (*header, "fold"), rows)


def digest_text(digest: bytes) -> str:
    """Return the first 8 bytes of an image's digest in hexadecimal, as in predictions.csv."""
    return digest[:8].hex()


# --- Reading ---


class LenientDict(Row):
    """A dict that returns None for missing keys, as in files of other versions."""

    def __missing__(self, key: str) -> None:
        return None


def read_json(path: Path) -> Any:
    """Read a JSON file, its objects as LenientDict."""
    return _read(path, _parse_json)


def is_damaged(path: Path) -> bool:
    """Return whether there is a file that is not JSON."""
    return path.exists() and read_json(path) is None


def read_epochs(path: Path) -> list[EpochRow] | None:
    """Read the rows of metrics.jsonl, ignoring blank lines."""
    return _read(
        path, lambda text: [_parse_json(line) for line in text.splitlines() if line.strip()]
    )


def read_decisions(run: Path) -> dict[str, Any]:
    """Read decisions.jsonl; the last line of each name counts, one cut short is ignored."""
    return {
        line["decision"]: line["value"]
        for line in _read(run / DECISIONS, _parse_json_lines) or []
        if isinstance(line, dict) and isinstance(line["decision"], str) and "value" in line
    }


def read_csv(path: Path) -> list[Row] | None:
    """Read a CSV file as dicts keyed by its header."""
    rows = untrusted.read_csv(path, _PATHS)
    with suppress(DataError):
        _, header = next(rows, (0, []))
        return [
            LenientDict(zip(header, map(read_cell, header, cells), strict=False))
            for _, cells in rows
        ]
    return None


def read_toml_text(path: Path) -> str | None:
    """Read the text of a TOML file, unchanged, if it is valid."""
    return _read(path, _check_toml)


def read_results(run: Path) -> LenientDict:
    """Read results.json. Raises OutputError for a value of a wrong type."""
    path = run / "results.json"
    results = read_json(path)
    if results is None:
        return LenientDict()
    check_types(path, results, Results)
    return LenientDict(results)


def refuse_other_results(run: Path, of_model: Mapping[str, Any]) -> None:
    """Raise OutputError if results.json contradicts the results that the model file contains.

    Those in the model file are under a checksum; results.json may be changed, or another run's.
    """
    path = run / "results.json"
    saved = read_json(path)
    if not isinstance(saved, dict):
        return
    # Compared as text, in which NaN equals NaN.
    differing = [
        name
        for name, value in of_model.items()
        if name in saved and json.dumps(saved[name]) != json.dumps(value)
    ]
    if differing:
        raise OutputError(
            f"{path} is not that of the model beside it: the results in the model file differ in "
            f"{joined(differing, 3)}. Restore the file that was replaced, or train again"
        )


def drop_damaged(contents: Mapping[str, Any], render: Render) -> tuple[dict[str, Any], list[str]]:
    """Drop the contents that make render raise. Return the rest, and the names of those dropped.

    contents is by file name. Of a JSON object, only the offending values are dropped.
    """
    sound: dict[str, Any] = dict.fromkeys(contents)
    damaged: list[str] = []
    for name, content in contents.items():

        def renders(candidate: Any, name: str = name) -> bool:
            try:
                render(sound | {name: candidate})
            except Exception:  # a template can raise anything on values of a wrong type
                return False
            return True

        if renders(content):
            sound[name] = content
        elif isinstance(content, dict):
            sound[name] = _sound_part(content, renders)
            damaged += [f"{name}: {key}" for key in content if key not in sound[name]]
        else:
            damaged.append(name)
    return sound, damaged


def _read(path: Path, parse: Callable[[str], Parsed]) -> Parsed | None:
    try:
        return parse(untrusted.read_text(path, _PATHS))
    except (DataError, ValueError, RecursionError):
        return None


def _parse_json(text: str) -> Any:
    return untrusted.parse_json(text, _PATHS, LenientDict)


def _parse_json_lines(text: str) -> list[Any]:
    values = []
    for line in text.splitlines():
        with suppress(ValueError):
            values.append(_parse_json(line))
    return values


def _check_toml(text: str) -> str:
    tomllib.loads(text)
    return text


def _sound_part(content: Mapping[str, Any], renders: Callable[[Any], bool]) -> LenientDict:
    """Drop the fewest values of an object without which it renders.

    They are found by halving, since a page takes a while to render (the algorithm QuickXplain).
    """

    def without(keys: set[str]) -> LenientDict:
        return LenientDict({key: value for key, value in content.items() if key not in keys})

    def find_offenders(suspects: list[str], dropped: set[str]) -> set[str]:
        if renders(without(dropped)):
            return set()
        if len(suspects) <= 1:
            return set(suspects)
        first, second = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
        found = find_offenders(second, dropped | set(first))
        return found | find_offenders(first, dropped | found)

    return without(find_offenders(list(content), set()))
