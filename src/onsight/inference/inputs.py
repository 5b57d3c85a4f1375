"""From the inputs of a command line (files, folders, patterns, archives, lists) to images.

Inputs are found one after the other, so a list of them is never held in memory.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from glob import has_magic
from pathlib import Path
from typing import BinaryIO

from onsight.data.cache import find_cache_folder
from onsight.data.sources.archive import detect_archive, open_archive
from onsight.data.sources.manifest import is_manifest, read_paths
from onsight.errors import DataError, ImageError
from onsight.files import similar_names
from onsight.inference.images import Input, file_input, no_inputs, walk

STDIN = "-"

_ANY_DEPTH = "**"
_HEAD_BYTES = 2**13  # longer than any path, so the first NUL of a NUL-separated list is in it
_BLOCK_BYTES = 2**16
_MAX_PATH_BYTES = 2**16


def find_inputs(arguments: Sequence[str]) -> Iterator[Input]:
    """Return the images that command line arguments name, in order.

    Raises DataError at once for a path that does not exist; broken lists and archives raise it
    when their turn comes.
    """
    if not arguments:
        raise no_inputs()
    if arguments.count(STDIN) > 1:
        raise DataError("- can be given only once: stdin can be read only once")
    readers = [_choose_reader(argument) for argument in arguments]
    pairs = zip(readers, arguments, strict=True)
    return (image for read, argument in pairs for image in read(argument))


def list_files(paths: Iterable[str]) -> list[str]:
    """Return all files, those in folders included, in order; hidden files in folders are skipped.

    Raises DataError if a path does not exist, or if there are no files.
    """
    files = [file for path in paths for file in _expand(path)]
    if not files:
        raise no_inputs()
    return files


def matching_files(pattern: str) -> Iterator[str]:
    """Yield the files that match a pattern, folder by folder, sorted; hidden ones are skipped.

    `**` matches any number of folders, but no links to folders.
    """
    parts = pattern.split("/")
    fixed = next(index for index, part in enumerate(parts) if has_magic(part))
    wildcards = [*parts[fixed:], "*"] if parts[-1] == _ANY_DEPTH else parts[fixed:]
    start = "/".join(parts[:fixed]) + "/" if fixed else ""
    yield from _match_below(start, wildcards, _skip_any_depth({0}, wildcards))


def read_path_list(file: BinaryIO) -> Iterator[str]:
    """Yield the paths in a list: separated by NUL if it contains one, otherwise one per line.

    Raises DataError for anything else.
    """
    rest = file.read(_HEAD_BYTES)
    separator = b"\0" if b"\0" in rest else b"\n"
    block = rest
    while block:
        *paths, rest = rest.split(separator)
        if len(rest) > _MAX_PATH_BYTES:
            raise DataError("stdin is not a list of paths, one per line or separated by NUL")
        yield from (_decode_path(path, separator) for path in paths if path)
        block = file.read(_BLOCK_BYTES)
        rest += block
    if rest:
        yield _decode_path(rest, separator)


def _decode_path(path: bytes, separator: bytes) -> str:
    if b"\0" in path:  # the whole list would have been separated by NUL
        raise DataError(f"stdin is not a list of paths: there is a NUL after {path[:80]!r}")
    return os.fsdecode(path.removesuffix(b"\r") if separator == b"\n" else path)


def _choose_reader(argument: str) -> Callable[[str], Iterator[Input]]:
    """Return the function that finds the images of an argument. Raises DataError."""
    if argument == STDIN:
        return _read_stdin
    if os.path.isdir(argument):
        return _read_folder
    if has_magic(argument) and not os.path.lexists(argument):  # a file may be called a[1].png
        return _read_pattern
    if not os.path.exists(argument):
        raise _missing(argument)
    if not os.path.isfile(argument):
        return _read_file
    if is_manifest(Path(argument)):
        return _read_manifest
    return _read_archive if _is_archive(argument) else _read_file


def _is_archive(path: str) -> bool:
    try:
        return bool(detect_archive(Path(path)))
    except OSError:
        return False  # its row will have the reason why it cannot be read


def _read_file(path: str) -> Iterator[Input]:
    yield file_input(path)


def _read_folder(folder: str) -> Iterator[Input]:
    return map(file_input, walk(folder))


def _read_pattern(pattern: str) -> Iterator[Input]:
    path = None
    for path in matching_files(pattern):
        yield file_input(path)
    if path is None:
        raise DataError(f"no file matches {pattern} (** matches any number of folders)")


def _read_stdin(argument: str) -> Iterator[Input]:
    return map(file_input, read_path_list(sys.stdin.buffer))


def _read_manifest(manifest: str) -> Iterator[Input]:
    folder = os.path.dirname(manifest)
    return (file_input(os.path.join(folder, path)) for path in read_paths(Path(manifest)))


def _read_archive(archive: str) -> Iterator[Input]:
    """Yield the members in the archive's order, followed by those that cannot be used."""
    members, read = open_archive(Path(archive), find_cache_folder())
    for index, path in enumerate(members.paths):
        yield Input(f"{archive}/{path}", partial(read, index), file=False)
    for problem in members.problems:
        yield _unusable_input(f"{archive}/{problem.path}", problem.reason)


def _unusable_input(name: str, reason: str) -> Input:
    def refuse() -> bytes:
        raise ImageError(reason)

    return Input(name, refuse, file=False)


def _expand(path: str) -> Iterator[str]:
    if os.path.isfile(path):
        yield path
    elif os.path.isdir(path):
        yield from walk(path)
    else:
        raise _missing(path)


def _missing(path: str) -> DataError:
    """Return the error for a path that does not exist, with a similar name if there is one."""
    if not path:
        return DataError("an input is empty: is a variable in the command not set?")
    if path.startswith("--"):  # paths may begin so
        return DataError(
            f"{path} is no option here, and there is no file of that name; see the command's --help"
        )
    hint = similar_names(path)
    return DataError(f"{path} does not exist, or is neither a file nor a folder.{hint}")


def _match_below(folder: str, parts: Sequence[str], states: set[int]) -> Iterator[str]:
    """Yield the matching files of a folder, then those of its subfolders.

    The pattern is run as a finite automaton: states are the possible numbers of parts that the
    path so far has matched. A folder that cannot be listed is yielded itself.
    """
    subfolders = []
    try:
        entries = _scan(folder)
    except FileNotFoundError:
        return
    except OSError:
        yield folder  # reading it tells why
        return
    for name, is_folder, is_link in entries:
        any_depth = {state for state in states if is_link and parts[state] == _ANY_DEPTH}
        after = _advance(states - any_depth if is_folder else states, parts, name)
        if is_folder:
            subfolders.append((name, after - {len(parts)}))
        elif len(parts) in after:
            yield folder + name
    for name, after in subfolders:
        if after:
            yield from _match_below(f"{folder}{name}/", parts, after)


def _scan(folder: str) -> list[tuple[str, bool, bool]]:
    """Return (name, is_folder, is_link) of everything that is not hidden, sorted by name."""
    with os.scandir(folder or ".") as scan:
        entries = [entry for entry in scan if not entry.name.startswith(".")]
        # A link that leads to itself is no folder, but is_dir fails on it.
        links = [(entry, entry.is_symlink()) for entry in entries]
        return sorted(
            (entry.name, os.path.isdir(entry) if is_link else entry.is_dir(), is_link)
            for entry, is_link in links
        )


def _advance(states: set[int], parts: Sequence[str], name: str) -> set[int]:
    """Return the states that a file or folder name leads to."""
    after = set()
    for state in states - {len(parts)}:
        if parts[state] == _ANY_DEPTH:
            after.add(state)
        elif fnmatchcase(name, parts[state]):
            after.add(state + 1)
    return _skip_any_depth(after, parts)


def _skip_any_depth(states: set[int], parts: Sequence[str]) -> set[int]:
    """Add the states reached by letting a `**` match no folder."""
    reached = set(states)
    for index, part in enumerate(parts):
        if index in reached and part == _ANY_DEPTH:
            reached.add(index + 1)
    return reached
