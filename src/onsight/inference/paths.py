"""The inputs of predict, embed and similar: files as given, and the files in folders."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from onsight.errors import DataError


def input_paths(paths: Iterable[str]) -> list[str]:
    """Every file, in order; hidden files inside folders are left out.

    Raises DataError for a path that does not exist, or if there are no files.
    """
    found = [file for path in paths for file in _expand(path)]
    if not found:
        raise DataError("no files: none were given, or the folders given are empty")
    return found


def _expand(path: str) -> Iterator[str]:
    if os.path.isfile(path):
        yield path
    elif os.path.isdir(path):
        yield from _walk(Path(path))
    else:
        raise DataError(f"{path} does not exist, or is neither a file nor a folder")


def _walk(folder: Path) -> Iterator[str]:
    visited: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        place = os.path.realpath(parent)
        if place in visited:  # a link that leads back
            folders.clear()
            continue
        visited.add(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield os.path.join(parent, name)
