"""Reads many files: those that train or evaluate as scripts, with their modules, others alone."""

import gc
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from onsight_lint.errors import ReadError
from onsight_lint.library import Library
from onsight_lint.read import Finding, Reading, read
from onsight_lint.rule import Rule
from onsight_lint.rules import unused_ignore
from onsight_lint.unused import Silenced, runs_by_itself, unused_ignores

_MANY = 200  # files, from which on starting other processes pays
_PART, _PART_SCRIPTS = 20, 4  # files that a process reads at a time
_MOST = 8  # processes
_TRAINS = re.compile(r"[Ll]oader|dl\b|\.backward\(")
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)", re.MULTILINE)

_Part = list[tuple[Path, Reading | str]]
_ReadParts = Callable[[Sequence[Sequence[Path]], bool], Iterable[_Part]]  # bool: each file alone

_given: tuple[Library, Sequence[Rule]]  # of a process that helps


@dataclass
class Readings:
    """What was found in many files; unread: why files could not be read, by file."""

    findings: set[Finding] = field(default_factory=set)
    unread: dict[Path, str] = field(default_factory=dict)
    files: set[Path] = field(default_factory=set)
    silenced: set[Silenced] = field(default_factory=set)
    with_scripts: set[Path] = field(default_factory=set)  # read for a script, or one themselves

    @property
    def sorted(self) -> list[Finding]:
        """The findings by file and line."""
        return sorted(self.findings, key=lambda one: one.place)

    def leave(self, path: Path, why: str) -> None:
        """Count a file as one that could not be read: what was found in it does not hold."""
        self.unread[path] = why
        self.findings = {one for one in self.findings if one.file != path}


def read_many(files: Sequence[Path], library: Library, rules: Sequence[Rule]) -> Readings:
    """The findings in files, each of which is read once where it can be.

    A script is read with the modules of its own folder; a file that was read for a script is not
    read again by itself. Where many are to be read alone, other processes read them meanwhile.
    """
    done = Readings(files=set(files))
    texts: dict[Path, str] = {}
    for path in files:
        try:
            texts[path] = library.text(path)
        except ReadError as error:
            done.unread[path] = str(error)
    scripts, imported, others = _kinds(texts)
    with _reader(len(texts), library, rules) as read_parts, _no_collection():
        together = read_parts(_parts(scripts, _PART_SCRIPTS), False)
        alone = read_parts(_parts(others, _PART), True)
        read_for_others: set[Path] = set()
        for path, reading in chain.from_iterable(together):
            read_for_others |= _add(path, texts[path], reading, done)
        for path in imported:
            if path not in read_for_others:
                reading = _read(path, library, rules, alone=False)
                read_for_others |= _add(path, texts[path], reading, done)
        for path, reading in chain.from_iterable(alone):
            if path not in read_for_others:
                _add(path, texts[path], reading, done)
    if unused_ignore.RULE in rules:
        done.findings |= set(_unused_ignores(texts, rules, done))
    return done


def _unused_ignores(
    texts: Mapping[Path, str], rules: Sequence[Rule], done: Readings
) -> Iterator[Finding]:
    """The comments that silenced nothing in the files that were named and could be read."""
    checked = {rule.id for rule in rules}
    for path in texts.keys() - done.unread.keys():
        judged = path in done.with_scripts
        yield from unused_ignores(path, texts[path], done.silenced, checked, judged)


def _parts(paths: Sequence[Path], size: int) -> list[Sequence[Path]]:
    return [paths[n : n + size] for n in range(0, len(paths), size)]


def _read(path: Path, library: Library, rules: Sequence[Rule], alone: bool) -> Reading | str:
    """What reading a script gives, or why it cannot be read."""
    try:
        return read(path, library, rules, alone)
    except ReadError as error:
        return str(error)


def _add(path: Path, text: str, reading: Reading | str, done: Readings) -> set[Path]:
    """Note what reading a script gave, and return the files that were read for it."""
    if isinstance(reading, str):
        done.unread[path] = reading
        return {path}
    done.findings |= set(reading.findings)
    done.files |= set(reading.files)
    done.silenced |= reading.silenced
    if runs_by_itself(text):
        done.with_scripts |= set(reading.files)
    return set(reading.files)


@contextmanager
def _reader(count: int, library: Library, rules: Sequence[Rule]) -> Iterator[_ReadParts]:
    """What reads parts: other processes, where so many files are worth their start."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if count < _MANY or not cores or cores < 2 or not _can_fork():
        yield lambda parts, alone: (_read_part(part, library, rules, alone) for part in parts)
        return
    from concurrent.futures import ProcessPoolExecutor  # here: it takes a tenth of the start
    from multiprocessing import get_context

    # Spawned ones would import from the working directory: code that is only to be read.
    fork, given = get_context("fork"), (library, rules)
    with ProcessPoolExecutor(min(cores, _MOST), fork, _set_given, given) as pool:
        yield lambda parts, alone: pool.map(partial(_read_part_of_given, alone=alone), parts)


def _read_part(
    paths: Sequence[Path], library: Library, rules: Sequence[Rule], alone: bool
) -> _Part:
    with _no_collection():
        return [(path, _read(path, library, rules, alone)) for path in paths]


def _set_given(library: Library, rules: Sequence[Rule]) -> None:
    """Keep the library of a process that helps: it parses a module once for all its parts."""
    global _given
    _given = library, rules


def _read_part_of_given(paths: Sequence[Path], alone: bool) -> _Part:
    return _read_part(paths, *_given, alone)


def _can_fork() -> bool:
    """Whether copies of this process can go on: other threads may hold locks."""
    return hasattr(os, "fork") and threading.active_count() == 1


@contextmanager
def _no_collection() -> Iterator[None]:
    """No search for circles of garbage meanwhile: among so many nodes it takes half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _kinds(texts: Mapping[Path, str]) -> tuple[list[Path], list[Path], list[Path]]:
    """The files that train or evaluate, started or imported by others, and all other files."""
    names: set[str] = set()
    for text in texts.values():
        names |= {name.rpartition(".")[2] for name in _IMPORTED.findall(text)}
    scripts, imported, others = [], [], []
    for path, text in sorted(texts.items()):
        if not _TRAINS.search(text):
            others.append(path)
        elif path.stem in names and "__main__" not in text:
            imported.append(path)
        else:
            scripts.append(path)
    return scripts, imported, others
