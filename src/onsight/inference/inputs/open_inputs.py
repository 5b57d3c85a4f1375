"""From the words of a command line to images, one after the other; no list of them is kept."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from onsight.data.cache import find_cache_folder
from onsight.data.sources.archive import detect_archive, open_archive
from onsight.data.sources.manifest import is_manifest, read_paths
from onsight.errors import DataError
from onsight.inference.inputs.files import missing, no_files, walk
from onsight.inference.inputs.input import Input, file_input, unusable_input
from onsight.inference.inputs.path_list import listed_paths
from onsight.inference.inputs.pattern import is_pattern, matching_files

STDIN = "-"


def open_inputs(words: Sequence[str]) -> Iterator[Input]:
    """The images that words name, in order: see `onsight predict --help`.

    Raises DataError now for what does not exist; later, for lists and archives that are broken.
    """
    if not words:
        raise no_files()
    if words.count(STDIN) > 1:
        raise DataError("- stands for the list on stdin, which can be read only once")
    found = [_kind(word) for word in words]
    return (one for read, word in zip(found, words, strict=True) for one in read(word))


def _kind(word: str) -> Callable[[str], Iterator[Input]]:
    """How the images of a word are found. Raises DataError."""
    if word == STDIN:
        return _of_stdin
    if os.path.isdir(word):
        return _of_folder
    if is_pattern(word):
        return _of_pattern
    if not os.path.exists(word):
        raise missing(word)
    if not os.path.isfile(word):
        return _of_file
    if is_manifest(Path(word)):
        return _of_manifest
    return _of_archive if _is_archive(word) else _of_file


def _is_archive(path: str) -> bool:
    try:
        return bool(detect_archive(Path(path)))
    except OSError:
        return False  # its row will say why it cannot be read


def _of_file(path: str) -> Iterator[Input]:
    yield file_input(path)


def _of_folder(folder: str) -> Iterator[Input]:
    return map(file_input, walk(folder))


def _of_pattern(pattern: str) -> Iterator[Input]:
    path = None
    for path in matching_files(pattern):
        yield file_input(path)
    if path is None:
        raise DataError(f"no file matches {pattern}; ** stands for any number of folders")


def _of_stdin(word: str) -> Iterator[Input]:
    return map(file_input, listed_paths(sys.stdin.buffer))


def _of_manifest(manifest: str) -> Iterator[Input]:
    folder = os.path.dirname(manifest)
    return (file_input(os.path.join(folder, path)) for path in read_paths(Path(manifest)))


def _of_archive(archive: str) -> Iterator[Input]:
    """The members in the archive's order, then what cannot be used of it."""
    members, read = open_archive(Path(archive), find_cache_folder())
    for number, path in enumerate(members.paths):
        yield Input(f"{archive}/{path}", partial(read, number), file=False)
    for problem in members.problems:
        yield unusable_input(f"{archive}/{problem.path}", problem.reason)
