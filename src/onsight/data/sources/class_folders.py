"""Class folders: an image's class and split, given by its path alone.

The same rules apply to a folder, a zip and a tar.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from onsight.data.index import SPLIT_WORDS, TRAIN, UNSPLIT, Problem, Row
from onsight.errors import DataError

EXPECTED = """\
Put each class in a folder of its own, below split folders if the data has a split:

    pets/cat/1.jpg    or    pets/train/cat/1.jpg
    pets/dog/2.jpg          pets/train/dog/2.jpg
                            pets/test/cat/3.jpg"""


class Arrangement(NamedTuple):
    """Rows, each row's position among the paths, and the paths that belong to no class."""

    rows: list[Row]
    places: list[int]
    problems: list[Problem]


def arrange(paths: Sequence[str], where: str, strip_top: bool = False) -> Arrangement:
    """Sort relative POSIX paths into classes and splits.

    The class is the first folder, or the second below train, val and test. strip_top: skip a
    single folder around everything, as archives often have. where: what an error message
    names. Raises DataError if no path is in a class folder.
    """
    top = 1 if strip_top and _has_wrapper(paths) else 0
    split_given = _are_splits(_folders(paths, top))
    depth = top + split_given
    arrangement = Arrangement([], [], [])
    for place, path in enumerate(paths):
        parts = path.split("/", depth + 1)
        if len(parts) < depth + 2:
            arrangement.problems.append(Problem(path, "scan", "not inside a class folder"))
            continue
        split = SPLIT_WORDS[parts[top].lower()] if split_given else UNSPLIT
        arrangement.rows.append(Row(path, class_name(parts[depth]), split))
        arrangement.places.append(place)
    if not arrangement.rows:
        raise DataError(
            f"none of the {len(paths):,} files in {where} is in a class folder.\n" + EXPECTED
        )
    return arrangement


def is_hidden(name: str) -> bool:
    """Whether a file or folder is one that tools hide: `.git`, `._1.jpg`, `__MACOSX`."""
    return name.startswith(".") or name == "__MACOSX"


@cache
def class_name(folder: str) -> str:
    """A folder's name as a printable label; bytes that are not UTF-8 show as \\xe9."""
    return folder.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _folders(paths: Sequence[str], level: int) -> set[str]:
    """The names of the folders at a level."""
    split = (path.split("/", level + 1) for path in paths)
    return {parts[level] for parts in split if len(parts) > level + 1}


def _are_splits(folders: set[str]) -> bool:
    """Whether folders are train and possibly val and test, and nothing else."""
    splits = {SPLIT_WORDS.get(name.lower()) for name in folders}
    return TRAIN in splits and None not in splits


def _has_wrapper(paths: Sequence[str]) -> bool:
    """Whether a single folder wraps the class folders: pets/cat/1.jpg, pets/dog/2.jpg."""
    folders = _folders(paths, 0)
    if len(folders) != 1 or _are_splits(folders):
        return False
    return 2 * sum(path.count("/") >= 2 for path in paths) > len(paths)
