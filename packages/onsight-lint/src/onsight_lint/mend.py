"""Applies the mends that are certain, and writes files so that none is ever half written."""

import difflib
import io
import os
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from onsight_lint.errors import ReadError, WriteError
from onsight_lint.library import Library
from onsight_lint.many import Readings, read_many
from onsight_lint.paths import shown
from onsight_lint.read import Change
from onsight_lint.rule import Rule
from onsight_lint.source import parsed

_ROUNDS = 10  # a mend may reveal another mistake, such as missing-train after missing-eval


def mended(
    files: Sequence[Path], rules: Sequence[Rule], given: Mapping[Path, str] | None = None
) -> tuple[dict[Path, str], Readings]:
    """The new texts of those files that have certain mends, and what is left to find in them.

    given: texts that are read in place of the files of these names.
    """
    texts: dict[Path, str] = {}
    given_up: set[Path] = set()
    for _ in range(_ROUNDS):
        library = Library({**(given or {}), **texts})
        readings = read_many(files, library, rules)
        changes: dict[Path, list[Change]] = defaultdict(list)
        for one in readings.sorted:
            if one.mend and one.file in files and one.file not in given_up:
                changes[one.file] += one.mend
        if not changes:
            break
        for path, wanted in changes.items():
            text = applied(library.text(path), wanted)
            try:
                parsed(path, text)
            except ReadError:
                given_up.add(path)
            else:
                texts[path] = text
    return texts, readings


def applied(text: str, changes: Sequence[Change]) -> str:
    """A text with changes made, from its end to its start; of two that overlap, the later one."""
    limit = len(text) + 1
    for start, end, new in sorted(set(changes), reverse=True):
        if end <= limit and start < limit:
            text, limit = text[:start] + new + text[end:], start
    return text


def difference(path: Path, text: str, given: Mapping[Path, str] | None = None) -> str:
    """The change of a file as a unified diff; given: as in mended."""
    old, name = Library(given).text(path), shown(path)
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), text.splitlines(keepends=True), name, name
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def rewrite(path: Path, text: str, before: bytes) -> None:
    """Replace a file's text, keeping its encoding, line ends and mode.

    It is written beside the file and renamed, so that the file is always whole. before: what the
    file held when the text was made. Raises ReadError, and leaves the file as it is, if it holds
    something else by now or if its lines end in several ways; WriteError if it cannot be written.
    """
    encoding = tokenize.detect_encoding(io.BytesIO(before).readline)[0]
    try:
        content = text.replace("\n", _line_end(path, before)).encode(encoding)
    except UnicodeEncodeError as error:
        raise _left(path, "its encoding lacks a character") from error
    try:
        _replace(path.resolve(), content, before)  # a link stays a link
    except (_Changed, FileNotFoundError) as error:
        raise _left(path, "it changed while it was read; run again") from error
    except OSError as error:
        raise WriteError(f"cannot write {shown(path)}: {error.strerror or error}.") from error


class _Changed(Exception):
    """A file does not hold any more what was read."""


def _replace(place: Path, content: bytes, before: bytes) -> None:
    """Replace what a file holds as a whole, if that is still what it held before.

    Whoever is killed here may leave a hidden file `.onsight-lint-*.tmp` beside it.
    """
    descriptor, name = tempfile.mkstemp(".tmp", ".onsight-lint-", place.parent)
    new = Path(name)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.chmod(place.stat().st_mode & 0o7777)
        if place.read_bytes() != before:
            raise _Changed
        new.replace(place)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _line_end(path: Path, content: bytes) -> str:
    pairs, returns, feeds = content.count(b"\r\n"), content.count(b"\r"), content.count(b"\n")
    if pairs and pairs == returns == feeds:
        return "\r\n"
    if returns and not feeds:
        return "\r"
    if returns:
        raise _left(path, "its lines end in more than one way")
    return "\n"


def _left(path: Path, why: str) -> ReadError:
    return ReadError(f"{shown(path)} is left as it is: {why}.")
