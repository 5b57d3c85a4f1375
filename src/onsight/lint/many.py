"""Reads many files: those that train or evaluate as scripts, with their modules, others alone."""

import gc
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from onsight.errors import DataError
from onsight.lint.library import Library
from onsight.lint.read import Finding, read
from onsight.lint.rule import Rule

_TRAINS = re.compile(r"[Ll]oader|dl\b|\.backward\(")
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)", re.MULTILINE)


@dataclass
class Readings:
    """What was found in many files; unread: why files could not be read, by file."""

    findings: set[Finding] = field(default_factory=set)
    unread: dict[Path, str] = field(default_factory=dict)
    files: set[Path] = field(default_factory=set)

    @property
    def sorted(self) -> list[Finding]:
        """The findings by file and line."""
        return sorted(self.findings, key=lambda one: one.place)


def read_many(files: Sequence[Path], library: Library, rules: Sequence[Rule]) -> Readings:
    """The findings in files, each of which is read once where it can be.

    A script is read with the modules of its own folder; a file that was read for a script is not
    read again by itself.
    """
    done = Readings(files=set(files))
    texts: dict[Path, str] = {}
    for path in files:
        try:
            texts[path] = library.text(path)
        except DataError as error:
            done.unread[path] = str(error)
    read_for_others: set[Path] = set()
    with _no_collection():
        for path in _scripts(texts):
            if path not in read_for_others or "__main__" in texts[path]:
                read_for_others |= _add(path, done, library, rules, alone=False)
        for path in texts:
            if path not in read_for_others:
                _add(path, done, library, rules, alone=True)
    return done


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


def _add(
    path: Path, done: Readings, library: Library, rules: Sequence[Rule], alone: bool
) -> set[Path]:
    """Read a script, and return the files that were read for it."""
    try:
        reading = read(path, library, rules, alone)
    except DataError as error:
        done.unread[path] = str(error)
        return {path}
    done.findings |= set(reading.findings)
    done.files |= set(reading.files)
    return set(reading.files)


def _scripts(texts: dict[Path, str]) -> list[Path]:
    """The files that train or evaluate, those first that nothing seems to import."""
    names: Counter[str] = Counter()
    for text in texts.values():
        names.update({name.rpartition(".")[2] for name in _IMPORTED.findall(text)})
    scripts = [path for path, text in texts.items() if _TRAINS.search(text)]
    return sorted(scripts, key=lambda path: (names[path.stem], path))
