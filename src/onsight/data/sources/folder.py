"""A folder of class folders, read in place."""

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onsight.data.file_state import identity
from onsight.data.index import Index, Problem, Row
from onsight.data.sources.class_folders import EXPECTED, arrange, class_name, is_hidden
from onsight.data.sources.read_file import read_regular_file
from onsight.data.sources.source import Source, found_line, hidden_note
from onsight.errors import DataError
from onsight.words import listed, plural


def read_folder(root: Path) -> Source:
    """The class folders below root. Raises DataError if there are none."""
    root = Path(os.path.realpath(root))
    walk = _Walk(str(root))
    walk.run()
    if not walk.files:
        raise DataError(f"{root} holds no files{walk.first_reason()}.\n{EXPECTED}")
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
        found=found_line("class folders", index, size, walk.notes()),
        problems=problems,
    )


def read_unlabelled(root: Path) -> Source:
    """Every file below root, all of one class without a name. Raises DataError if there is none."""
    root = Path(os.path.realpath(root))
    walk = _Walk(str(root))
    walk.run()
    if not walk.files:
        raise DataError(f"{root} holds no files{walk.first_reason()}")
    index = Index.of([Row(path, "") for path in walk.files])
    return Source(
        kind="unlabelled",
        root=root,
        index=index,
        read=FileReader(str(root), index.locators),
        fingerprint=walk.digest.hexdigest(),
        found=", ".join([f"a folder, {plural(len(walk.files), 'file')}", *walk.notes()]),
        problems=walk.problems,
    )


@dataclass(frozen=True)
class FileReader:
    """Reads row i from the file that its locator names, relative to a folder."""

    folder: str
    locators: Sequence[str]

    def __call__(self, row: int) -> bytes:
        """The encoded bytes of an image. Raises ImageError."""
        return read_regular_file(os.path.join(self.folder, self.locators[row]))


class _Walk:
    """One pass over a tree in the order of names: each file once, without loops."""

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
        self._waiting: list[str] = []

    def run(self) -> None:
        """Visit every folder. Raises DataError if the root itself cannot be read."""
        self._enter("", Path(self.root).stat())
        while self._waiting:
            self._visit(self._waiting.pop())

    def notes(self) -> list[str]:
        """What was skipped without being a problem."""
        notes = hidden_note(self._hidden)
        if self._empty:
            names = listed([class_name(path) for path in self._empty], most=3)
            notes.append(f"{plural(len(self._empty), 'empty folder')} ({names})")
        if self._linked_files:
            links = plural(self._linked_files, "link")
            notes.append(f"{links} to files of the same tree, counted once")
        if self._linked_folders:
            links = plural(self._linked_folders, "link")
            notes.append(f"{links} to folders of the same tree, not followed")
        return notes

    def first_reason(self) -> str:
        """Why nothing was found, if there is a problem to show."""
        if not self.problems:
            return ""
        path, _, reason = self.problems[0]
        return f" that can be used ({path}: {reason})"

    def _enter(self, path: str, facts: os.stat_result) -> bool:
        """Schedule a folder; False if it was scheduled before."""
        identity = facts.st_dev, facts.st_ino
        if identity in self._visited:
            return False
        self._visited.add(identity)
        self._waiting.append(path)
        return True

    def _visit(self, folder: str) -> None:
        try:
            with os.scandir(os.path.join(self.root, folder)) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            if not folder:
                raise DataError(f"{self.root} cannot be read: {error.strerror}") from error
            self._refuse(folder, f"cannot be read: {error.strerror}")
            return
        if folder and not entries:
            self._empty.append(folder)
        known = len(self._waiting)
        for entry in entries:
            self._sort_in(entry, f"{folder}/{entry.name}" if folder else entry.name)
        self._waiting[known:] = reversed(self._waiting[known:])  # a stack: the first name on top

    def _sort_in(self, entry: os.DirEntry[str], path: str) -> None:
        if is_hidden(entry.name):
            self._hidden += 1
            return
        try:
            if entry.is_symlink():
                self._follow(entry, path)
            else:
                self._accept(path, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            self._refuse(path, "dangling link" if entry.is_symlink() else "removed during the scan")
        except OSError as error:
            self._refuse(path, f"cannot be read: {error.strerror}")

    def _accept(self, path: str, facts: os.stat_result) -> None:
        if stat.S_ISDIR(facts.st_mode):
            self._linked_folders += not self._enter(path, facts)
        elif stat.S_ISREG(facts.st_mode):
            self.files.append(path)
            self.digest.update(identity(path, facts))
        else:
            self._refuse(path, "not a regular file")

    def _follow(self, link: os.DirEntry[str], path: str) -> None:
        """Accept what a link leads to, unless the walk reaches it anyway."""
        facts = link.stat()
        is_folder = stat.S_ISDIR(facts.st_mode)
        target = os.path.realpath(link.path)
        if self._is_walked(target) or (is_folder and self._encloses_root(target)):
            self._linked_folders += is_folder
            self._linked_files += not is_folder
        else:
            self._accept(path, facts)

    def _is_walked(self, target: str) -> bool:
        """Whether a path is in the tree, and not in a hidden part of it.

        Tools like git-annex keep files in a hidden folder and link to them.
        """
        prefix = os.path.join(self.root, "")
        parts = target.removeprefix(prefix).split("/")
        return target.startswith(prefix) and not any(is_hidden(part) for part in parts)

    def _encloses_root(self, target: str) -> bool:
        return self.root.startswith(os.path.join(target, ""))

    def _refuse(self, path: str, reason: str) -> None:
        self.problems.append(Problem(path, "scan", reason))
