"""Files as given, and the files in folders, one after the other."""

import os
from collections.abc import Iterable, Iterator

from onsight.errors import DataError, did_you_mean

_NEIGHBOURS = 10_000  # names compared with one that does not exist


def input_paths(paths: Iterable[str]) -> list[str]:
    """Every file, in order; hidden files inside folders are left out.

    Raises DataError for a path that does not exist, or if there are no files.
    """
    found = [file for path in paths for file in _expand(path)]
    if not found:
        raise no_files()
    return found


def no_files() -> DataError:
    """The error for nothing to do."""
    return DataError("no files: none were given, or what was given is empty")


def missing(path: str) -> DataError:
    """The error for a path that does not exist, with similar names."""
    parent, name = os.path.split(path)
    try:
        with os.scandir(parent or ".") as scan:
            names = sorted(entry.name for entry, _ in zip(scan, range(_NEIGHBOURS), strict=False))
    except OSError:
        names = []
    hint = did_you_mean(name, names)
    return DataError(f"{path} does not exist, or is neither a file nor a folder.{hint}")


def walk(folder: str) -> Iterator[str]:
    """Every file below a folder in the order of names, but for hidden ones; each folder once."""
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


def _expand(path: str) -> Iterator[str]:
    if os.path.isfile(path):
        yield path
    elif os.path.isdir(path):
        yield from walk(path)
    else:
        raise missing(path)
