"""Applies the mends that are certain, and writes files so that none is ever half written."""

import difflib
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


def rewrite(path: Path, text: str) -> None:
    """Replace a file's text, keeping its encoding, line ends and mode.

    It is written beside the file and renamed, so that the file is always whole. Raises ReadError
    if its lines end in several ways, WriteError if it cannot be written.
    """
    place = path.resolve()  # a link stays a link
    try:
        with place.open("rb") as file:
            encoding = tokenize.detect_encoding(file.readline)[0]
        content = text.replace("\n", _line_end(place)).encode(encoding)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".lint-", delete=False) as file:
            new = Path(file.name)
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                new.chmod(place.stat().st_mode & 0o7777)
                new.replace(place)
            except BaseException:
                new.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise WriteError(f"cannot write {shown(path)}: {error.strerror or error}.") from error
    except UnicodeEncodeError as error:
        raise ReadError(
            f"{shown(path)} is left as it is: its encoding lacks a character."
        ) from error


def _line_end(path: Path) -> str:
    content = path.read_bytes()
    pairs, returns, feeds = content.count(b"\r\n"), content.count(b"\r"), content.count(b"\n")
    if pairs and pairs == returns == feeds:
        return "\r\n"
    if returns and not feeds:
        return "\r"
    if returns:
        raise ReadError(f"{shown(path)} is left as it is: its lines end in more than one way.")
    return "\n"
