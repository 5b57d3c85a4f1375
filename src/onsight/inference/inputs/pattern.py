"""The files that a pattern such as `photos/**/*.jpg` matches, one after the other."""

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import has_magic

_ANY_DEPTH = "**"


def is_pattern(path: str) -> bool:
    """Whether a path has a wildcard, and is not a file or folder whose name looks like one."""
    return has_magic(path) and not os.path.lexists(path)


def matching_files(pattern: str) -> Iterator[str]:
    """The files that match, folder by folder in the order of names; hidden ones are left out.

    `**` stands for any number of folders; links to folders are not followed there.
    """
    parts = pattern.split("/")
    fixed = next(place for place, part in enumerate(parts) if has_magic(part))
    wanted = [*parts[fixed:], "*"] if parts[-1] == _ANY_DEPTH else parts[fixed:]
    start = "/".join(parts[:fixed]) + "/" if fixed else ""
    yield from _below(start, wanted, _reached({0}, wanted))


def _below(folder: str, parts: Sequence[str], places: set[int]) -> Iterator[str]:
    """The matching files of a folder, then those of its folders.

    places: how many parts of the pattern the folder may have used up, as in a finite automaton.
    """
    folders = []
    for name, is_folder, is_link in _entries(folder):
        by_depth = {place for place in places if is_link and parts[place] == _ANY_DEPTH}
        after = _advance(places - by_depth if is_folder else places, parts, name)
        if is_folder:
            folders.append((name, after - {len(parts)}))
        elif len(parts) in after:
            yield folder + name
    for name, after in folders:
        if after:
            yield from _below(f"{folder}{name}/", parts, after)


def _entries(folder: str) -> list[tuple[str, bool, bool]]:
    """(name, whether it is a folder, whether it is a link) of what is not hidden, by name."""
    try:
        with os.scandir(folder or ".") as scan:
            shown = [entry for entry in scan if not entry.name.startswith(".")]
            return sorted((one.name, one.is_dir(), one.is_symlink()) for one in shown)
    except OSError:
        return []


def _advance(places: set[int], parts: Sequence[str], name: str) -> set[int]:
    """Where in the pattern a name leads from these places."""
    after = set()
    for place in places - {len(parts)}:
        if parts[place] == _ANY_DEPTH:
            after.add(place)
        elif fnmatchcase(name, parts[place]):
            after.add(place + 1)
    return _reached(after, parts)


def _reached(places: set[int], parts: Sequence[str]) -> set[int]:
    """The same places, and those behind a `**` that stands for no folder."""
    reached = set(places)
    for place, part in enumerate(parts):
        if place in reached and part == _ANY_DEPTH:
            reached.add(place + 1)
    return reached
