"""Apply the rules to many files, parsing each only once where possible, and fix them.

A file that trains or evaluates is read as a script, with its modules; any other is read alone.
"""

import gc
import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from onsight_lint.edits import Change, apply_changes, drop_overlaps
from onsight_lint.errors import ReadError
from onsight_lint.ignores import Silenced, runs_by_itself, unused_ignores
from onsight_lint.read import ScriptReport, check_script, rule_table
from onsight_lint.rule import Finding, Rule
from onsight_lint.rules import unused_ignore
from onsight_lint.script import Library
from onsight_lint.source import parse

_MIN_FILES_FOR_POOL = 200  # with fewer files, starting processes takes longer than it saves
_CHUNK, _CHUNK_OF_SCRIPTS = 20, 4  # files sent to a process at a time
_MAX_PROCESSES = 8
_MAX_FIX_ROUNDS = 10  # a fix may reveal another mistake: missing-train after missing-eval

_TRAINS_OR_EVALUATES = re.compile(r"[Ll]oader|dl\b|\.backward\(")
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)", re.MULTILINE)

_Reports = Iterable[tuple[Path, ScriptReport | str]]  # str: why the file cannot be read
_ReadFiles = Callable[[Sequence[Path], bool], _Reports]  # bool: alone

_worker_inputs: tuple[Library, Sequence[Rule]]  # set in worker processes only


@dataclass
class LintResult:
    """The findings in many files."""

    findings: set[Finding] = field(default_factory=set)
    unread: dict[Path, str] = field(default_factory=dict)  # why files could not be read
    files: set[Path] = field(default_factory=set)
    silenced: set[Silenced] = field(default_factory=set)
    read_with_script: set[Path] = field(default_factory=set)  # and the scripts themselves

    @property
    def sorted(self) -> list[Finding]:
        """The findings by file and line."""
        return sorted(
            self.findings, key=lambda item: (str(item.file), item.line, item.column, item.rule)
        )

    def add(self, path: Path, text: str, report: ScriptReport | str) -> set[Path]:
        """Add the report on a script, and return the files that were read for it."""
        if isinstance(report, str):
            self.unread[path] = report
            return {path}
        self.findings |= set(report.findings)
        self.files |= set(report.files)
        self.silenced |= report.silenced
        if runs_by_itself(text):
            self.read_with_script |= set(report.files)
        return set(report.files)

    def exclude(self, path: Path, why: str) -> None:
        """Count a file as unread, because its findings are out of date."""
        self.unread[path] = why
        self.findings = {finding for finding in self.findings if finding.file != path}


def read_many(files: Sequence[Path], library: Library, rules: Sequence[Rule]) -> LintResult:
    """Apply rules to files, reading each only once where possible.

    A file that was read as a module of a script is not read again on its own. Many files are
    read by several processes.
    """
    result = LintResult(files=set(files))
    texts: dict[Path, str] = {}
    for path in files:
        try:
            texts[path] = library.text(path)
        except ReadError as error:
            result.unread[path] = str(error)
    scripts, imported, others = _group(texts)
    with _open_reader(len(texts), library, rules) as read_files, _garbage_collection_paused():
        script_reports, other_reports = read_files(scripts, False), read_files(others, True)
        already_read: set[Path] = set()
        for path, report in script_reports:
            already_read |= result.add(path, texts[path], report)
        for path in imported:
            if path not in already_read:
                report = _try_script(path, library, rules, alone=False)
                already_read |= result.add(path, texts[path], report)
        for path, report in other_reports:
            if path not in already_read:
                result.add(path, texts[path], report)
    if unused_ignore.RULE in rules:
        result.findings |= set(_unused_ignores(texts, rules, result))
    return result


def fix_many(
    files: Sequence[Path], rules: Sequence[Rule], texts: Mapping[Path, str] | None = None
) -> tuple[dict[Path, str], LintResult]:
    """Return the new texts of the files with certain fixes, and the remaining findings.

    texts: used instead of the content of these files. A file whose fixed text does not parse is
    left as it was. Nothing is written.
    """
    fixed: dict[Path, str] = {}
    given_up: set[Path] = set()
    for _ in range(_MAX_FIX_ROUNDS):
        library = Library({**(texts or {}), **fixed})
        result = read_many(files, library, rules)
        changes: dict[Path, list[Change]] = defaultdict(list)
        for finding in result.sorted:
            if finding.changes and finding.file in files and finding.file not in given_up:
                changes[finding.file] += finding.changes
        if not changes:
            break
        for path, wanted in changes.items():
            text = apply_changes(library.text(path), drop_overlaps(wanted))
            try:
                parse(path, text)
            except ReadError:
                given_up.add(path)
            else:
                fixed[path] = text
    return fixed, result


def _group(texts: Mapping[Path, str]) -> tuple[list[Path], list[Path], list[Path]]:
    """The files that train or evaluate (scripts, then modules of others), and all other files."""
    names: set[str] = set()
    for text in texts.values():
        names |= {name.rpartition(".")[2] for name in _IMPORTED.findall(text)}
    scripts, imported, others = [], [], []
    for path, text in sorted(texts.items()):
        if not _TRAINS_OR_EVALUATES.search(text):
            others.append(path)
        elif path.stem in names and "__main__" not in text:
            imported.append(path)
        else:
            scripts.append(path)
    return scripts, imported, others


def _unused_ignores(
    texts: Mapping[Path, str], rules: Sequence[Rule], result: LintResult
) -> Iterator[Finding]:
    """The comments that silenced nothing, in the files that were named and could be read."""
    checked = {rule.id for rule in rules}
    for path in texts.keys() - result.unread.keys():
        is_complete = path in result.read_with_script
        yield from unused_ignores(
            path, texts[path], result.silenced, checked, rule_table(), is_complete
        )


@contextmanager
def _open_reader(count: int, library: Library, rules: Sequence[Rule]) -> Iterator[_ReadFiles]:
    """A function that reads files, in other processes if that is faster."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if count < _MIN_FILES_FOR_POOL or not cores or cores < 2 or not _can_fork():
        yield lambda paths, alone: (
            (path, _try_script(path, library, rules, alone)) for path in paths
        )
        return
    from concurrent.futures import ProcessPoolExecutor  # slow to import: a tenth of the start
    from multiprocessing import get_context

    # Spawned processes would import from the working directory: code that is only to be read.
    fork, inputs = get_context("fork"), (library, rules)
    with ProcessPoolExecutor(min(cores, _MAX_PROCESSES), fork, _start_worker, inputs) as pool:
        yield lambda paths, alone: pool.map(
            partial(_read_in_worker, alone=alone),
            paths,
            chunksize=_CHUNK if alone else _CHUNK_OF_SCRIPTS,
        )


def _can_fork() -> bool:
    """Return whether forking is safe: other threads may hold locks."""
    return hasattr(os, "fork") and threading.active_count() == 1


def _start_worker(library: Library, rules: Sequence[Rule]) -> None:
    """Keep one library for all files of a worker, so that a module is parsed once."""
    global _worker_inputs
    _worker_inputs = library, rules


def _read_in_worker(path: Path, alone: bool) -> tuple[Path, ScriptReport | str]:
    return path, _try_script(path, *_worker_inputs, alone)


def _try_script(
    path: Path, library: Library, rules: Sequence[Rule], alone: bool
) -> ScriptReport | str:
    """The report on a script, or why it cannot be read."""
    try:
        return check_script(path, library, rules, alone)
    except ReadError as error:
        return str(error)


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Disable the garbage collector, also in processes that are forked meanwhile.

    On large syntax trees it takes half of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
