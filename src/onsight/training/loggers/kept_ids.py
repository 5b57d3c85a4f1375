"""The names that loggers gave a run, in its folder, so that a resumed run continues the same."""

import json
from pathlib import Path

from onsight.files import write_json


def kept_id(folder: Path, logger: str) -> str | None:
    """The name that a logger gave this run, None if it has none yet."""
    name = _read(folder).get(logger)
    return name if isinstance(name, str) else None


def keep_id(folder: Path, logger: str, name: str) -> None:
    """Keep the name that a logger gave this run. Raises DiskError."""
    write_json(_path(folder), {**_read(folder), logger: name})


def _read(folder: Path) -> dict[str, object]:
    try:
        found = json.loads(_path(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _path(folder: Path) -> Path:
    return folder / "loggers.json"
