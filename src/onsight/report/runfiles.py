"""The files of a run folder, read leniently: None for what is missing or broken."""

import csv
import io
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from onsight.evaluation.results import EpochRow

Row = dict[str, Any]
Parsed = TypeVar("Parsed")


class Said(Row):
    """The values in a file of the run; None for those that are missing."""

    def __missing__(self, key: str) -> None:
        return None


def read_json(path: Path) -> Any:
    """The content of a JSON file, with its objects as Said."""
    return _read(path, _json)


def read_epochs(path: Path) -> list[EpochRow] | None:
    """The rows of metrics.jsonl; blank lines do not count."""
    return _read(path, _epochs)


def read_csv(path: Path) -> list[Row] | None:
    """The rows of a CSV file by the names in its header."""
    return _read(path, _csv_rows)


def read_toml_text(path: Path) -> str | None:
    """The text of a TOML file, unchanged, if it is valid."""
    return _read(path, _checked_toml)


def _read(path: Path, parse: Callable[[str], Parsed]) -> Parsed | None:
    try:
        return parse(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError, csv.Error):
        return None


def _json(text: str) -> Any:
    return json.loads(text, object_hook=Said)


def _epochs(text: str) -> list[EpochRow]:
    return [_json(line) for line in text.splitlines() if line.strip()]


def _csv_rows(text: str) -> list[Row]:
    return [Said(row) for row in csv.DictReader(io.StringIO(text, newline=""))]


def _checked_toml(text: str) -> str:
    tomllib.loads(text)
    return text
