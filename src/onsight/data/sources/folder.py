"""Folders of image files: the class is the folder's name, or found in the path by a pattern.

The rules for class folders (`arrange`) also apply to the paths inside a zip or a tar.
"""

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from onsight.data.cache import file_state_bytes
from onsight.data.index import SPLIT_WORDS, TRAIN, UNSPLIT, Index, Problem, Row
from onsight.data.path_pattern import search_paths
from onsight.data.sources.read_file import read_regular_file
from onsight.data.sources.source import (
    Source,
    compute_fingerprint,
    describe,
    find_split_word,
    note_hidden,
)
from onsight.errors import DataError
from onsight.text import joined, plural

EXPECTED = """\
Put each class in a folder of its own, below split folders if the data has a split:

    pets/cat/1.jpg    or    pets/train/cat/1.jpg
    pets/dog/2.jpg          pets/train/dog/2.jpg
                            pets/test/cat/3.jpg

Or name the part of the paths that is the label: --label-from '([a-z]+)_[0-9]+' for cat_001.jpg"""


def read_folder(root: Path) -> Source:
    """Return the images in the class folders below root. Raises DataError if there are none."""
    root = Path(os.path.realpath(root))
    walk = _Walk(str(root))
    walk.run(advice=f".\n{EXPECTED}")
    rows, _, unclassified = arrange(walk.files, str(root))
    index = Index.of(rows)
    problems = walk.problems + unclassified
    size = plural(len(rows) + len(problems), "file")
    return Source(
        kind="folders",
        root=root,
        index=index,
        read=FileReader(str(root), index.locators),
        fingerprint=walk.digest.hexdigest(),
        description=describe("class folders", index, size, walk.notes()),
        problems=problems,
    )


def read_unlabelled(root: Path) -> Source:
    """Return every file below root, all of one nameless class. Raises DataError for no file."""
    root = Path(os.path.realpath(root))
    walk = _Walk(str(root))
    walk.run()
    index = Index.of([Row(path, "") for path in walk.files])
    return Source(
        kind="unlabelled",
        root=root,
        index=index,
        read=FileReader(str(root), index.locators),
        fingerprint=walk.digest.hexdigest(),
        description=", ".join([f"a folder, {plural(len(walk.files), 'file')}", *walk.notes()]),
        problems=walk.problems,
    )


def read_labelled_names(folder: Path, pattern: str) -> Source:
    """Return every file below a folder, labelled by a regular expression applied to its path.

    The label is the first group of the match, or the whole match if the pattern has no group.
    Split folders give the split. A file that does not match becomes a problem. Raises ConfigError
    for an invalid pattern, DataError if no path matches.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; --label-from searches the file names in one")
    files = read_unlabelled(folder)
    rows, problems = [], list(files.problems)
    words = SPLIT_WORDS if _have_splits(files.index.locators, 0, str(folder)) else {}
    labels = search_paths("--label-from", pattern, files.index.locators)
    for path, label in zip(files.index.locators, labels, strict=True):
        if label:
            rows.append(Row(path, label, words.get(path.partition("/")[0].lower(), UNSPLIT)))
        else:
            problems.append(Problem(path, "scan", f"--label-from {pattern} finds no label in it"))
    if not rows:
        first = files.index.locators[0]
        raise DataError(f"--label-from {pattern} finds no label in any path, such as {first}")
    index = Index.of(rows)
    size = plural(len(rows) + len(problems), "file")
    return Source(
        kind="names",
        root=files.root,
        index=index,
        read=FileReader(str(files.root), index.locators),
        fingerprint=compute_fingerprint(["names", files.fingerprint, pattern]),
        description=describe("images with labels in their names", index, size),
        problems=problems,
    )


class Arrangement(NamedTuple):
    """Paths sorted into classes and splits."""

    rows: list[Row]
    positions: list[int]  # index into the paths, for each row
    problems: list[Problem]  # paths that belong to no class


def arrange(paths: Sequence[str], where: str, strip_top: bool = False) -> Arrangement:
    """Sort relative POSIX paths into classes and splits.

    The class is the first folder, or the second one below train, val and test. strip_top: ignore
    a single folder around everything, which archives often have; where: the dataset's name in
    messages. Raises DataError if no path is in a class folder, folders are beside the splits, or
    two classes read the same.
    """
    top = 1 if strip_top and _has_wrapper(paths) else 0
    split_given = _have_splits(paths, top, where)
    depth = top + split_given
    arrangement = Arrangement([], [], [])
    folders: dict[str, str] = {}  # by class
    for position, path in enumerate(paths):
        parts = path.split("/", depth + 1)
        if len(parts) < depth + 2:
            arrangement.problems.append(Problem(path, "scan", "not inside a class folder"))
            continue
        split = SPLIT_WORDS[parts[top].lower()] if split_given else UNSPLIT
        label = name_class(parts[depth])
        if folders.setdefault(label, parts[depth]) != parts[depth]:
            raise DataError(f"{where} has two class folders that read {label}; rename one of them")
        arrangement.rows.append(Row(path, label, split))
        arrangement.positions.append(position)
    if not arrangement.rows:
        raise DataError(
            f"none of the {len(paths):,} files in {where} is in a class folder.\n" + EXPECTED
        )
    return arrangement


def is_hidden(name: str) -> bool:
    """Return whether tools hide a file or folder of this name: `.git`, `._1.jpg`, `__MACOSX`."""
    return name.startswith(".") or name == "__MACOSX"


@cache
def name_class(folder: str) -> str:
    """Return a folder's name as a printable label; bytes that are not UTF-8 show as \\xe9."""
    return folder.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class FileReader:
    """Read row i from the file that its locator names, relative to a folder."""

    folder: str
    locators: Sequence[str]

    def __call__(self, row: int) -> bytes:
        """Return the encoded bytes of an image. Raises ImageError."""
        return read_regular_file(os.path.join(self.folder, self.locators[row]))


class _Walk:
    """One pass over a tree in the order of names; visits each file once, despite link cycles."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.files: list[str] = []
        self.problems: list[Problem] = []
        self.digest = hashlib.sha256(b"folders")
        self._hidden = 0
        self._empty: list[str] = []
        self._linked_files = 0
        self._linked_folders = 0
        self._visited: set[tuple[int, int]] = set()
        self._pending: list[str] = []

    def run(self, advice: str = "") -> None:
        """Visit every folder. Raises DataError if the root cannot be read, or there is no file."""
        self._enter("", Path(self.root).stat())
        while self._pending:
            self._visit(self._pending.pop())
        if not self.files:
            reasons = (f" that can be used ({path}: {why})" for path, _, why in self.problems)
            raise DataError(f"{self.root} holds no files{next(reasons, '')}{advice}")

    def notes(self) -> list[str]:
        """Return notes on skipped files and folders that are no problem."""
        notes = note_hidden(self._hidden)
        if self._empty:
            names = joined([name_class(path) for path in self._empty], limit=3)
            notes.append(f"{plural(len(self._empty), 'empty folder')} ({names})")
        if self._linked_files:
            links = plural(self._linked_files, "link")
            notes.append(f"{links} to files of the same tree, counted once")
        if self._linked_folders:
            links = plural(self._linked_folders, "link")
            notes.append(f"{links} to folders of the same tree, not followed")
        return notes

    def _enter(self, path: str, facts: os.stat_result) -> bool:
        """Schedule a folder; return False if it was scheduled before."""
        inode = facts.st_dev, facts.st_ino
        if inode in self._visited:
            return False
        self._visited.add(inode)
        self._pending.append(path)
        return True

    def _visit(self, folder: str) -> None:
        try:
            with os.scandir(os.path.join(self.root, folder)) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            if not folder:
                raise DataError(f"{self.root} cannot be read: {error.strerror}") from error
            self._reject(folder, f"cannot be read: {error.strerror}")
            return
        if folder and not entries:
            self._empty.append(folder)
        before = len(self._pending)
        for entry in entries:
            self._add_entry(entry, f"{folder}/{entry.name}" if folder else entry.name)
        # _pending is a stack: reversed, the first name is visited first.
        self._pending[before:] = reversed(self._pending[before:])

    def _add_entry(self, entry: os.DirEntry[str], path: str) -> None:
        if is_hidden(entry.name):
            self._hidden += 1
            return
        try:
            if entry.is_symlink():
                self._follow(entry, path)
            else:
                self._accept(path, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            self._reject(path, "dangling link" if entry.is_symlink() else "removed during the scan")
        except OSError as error:
            self._reject(path, f"cannot be read: {error.strerror}")

    def _accept(self, path: str, facts: os.stat_result) -> None:
        if stat.S_ISDIR(facts.st_mode):
            self._linked_folders += not self._enter(path, facts)
        elif stat.S_ISREG(facts.st_mode):
            self.files.append(path)
            self.digest.update(file_state_bytes(path, facts))
        else:
            self._reject(path, "not a regular file")

    def _follow(self, link: os.DirEntry[str], path: str) -> None:
        """Accept the target of a link, unless the walk reaches it anyway."""
        facts = link.stat()
        is_folder = stat.S_ISDIR(facts.st_mode)
        target = os.path.realpath(link.path)
        if self._is_walked(target) or (is_folder and self._encloses_root(target)):
            self._linked_folders += is_folder
            self._linked_files += not is_folder
        else:
            self._accept(path, facts)

    def _is_walked(self, target: str) -> bool:
        """Return whether a path is in the tree, and not in a hidden part of it.

        Tools like git-annex keep files in a hidden folder and link to them.
        """
        prefix = os.path.join(self.root, "")
        parts = target.removeprefix(prefix).split("/")
        return target.startswith(prefix) and not any(is_hidden(part) for part in parts)

    def _encloses_root(self, target: str) -> bool:
        return self.root.startswith(os.path.join(target, ""))

    def _reject(self, path: str, reason: str) -> None:
        self.problems.append(Problem(path, "scan", reason))


def _list_folders(paths: Sequence[str], level: int) -> set[str]:
    """Return the names of the folders at a level, 0 for the top."""
    split = (path.split("/", level + 1) for path in paths)
    return {parts[level] for parts in split if len(parts) > level + 1}


def _have_splits(paths: Sequence[str], level: int, where: str) -> bool:
    """Return whether the folders at a level are splits. Raises DataError if only some may be."""
    folders = _list_folders(paths, level)
    if _are_splits(folders):
        return True
    splits = sorted(name for name in folders if name.lower() in SPLIT_WORDS)
    if not splits and all(find_split_word(name) for name in folders):
        splits = sorted(folders)  # such as training_set and test_set
    if len(folders) > 1 and splits and _hold_classes(splits, paths, level):
        others = sorted(folders.difference(splits))
        raise DataError(
            f"{where} has the folders {joined([*splits, *others], limit=4)}. If they are splits, "
            f"keep only train, val and test there; if they are classes, rename {joined(splits)}"
        )
    return False


def _are_splits(folders: set[str]) -> bool:
    """Return whether folders are splits and nothing else: train, or at least two of them."""
    splits = {SPLIT_WORDS.get(name.lower()) for name in folders}
    return None not in splits and (TRAIN in splits or len(folders) > 1)


def _hold_classes(splits: Sequence[str], paths: Sequence[str], level: int) -> bool:
    """Return whether folders named like splits seem to hold class folders.

    Classes may have such names too, and folders inside, such as one for each video. So a single
    one must have most of its files in folders, and stand beside a single other folder or one that
    has a folder of the same name.
    """
    inside: dict[str, list[str]] = {}  # paths inside a folder, such as cat/1.jpg
    for path in paths:
        parts = path.split("/", level + 1)
        if len(parts) == level + 2:
            inside.setdefault(parts[level], []).append(parts[-1])
    inner = {name: _list_folders(inside[name], 0) for name in inside}
    if len(splits) > 1:
        return any(inner[name] for name in splits)
    split = splits[0]
    if 2 * sum("/" in path for path in inside[split]) <= len(inside[split]):
        return False
    others = [inner[name] for name in inner if name != split]
    return len(others) == 1 or any(names & inner[split] for names in others)


def _has_wrapper(paths: Sequence[str]) -> bool:
    """Return whether a single folder wraps the class folders: pets/cat/1.jpg, pets/dog/2.jpg."""
    folders = _list_folders(paths, 0)
    if len(folders) != 1 or _are_splits(folders):
        return False
    return 2 * sum(path.count("/") >= 2 for path in paths) > len(paths)
