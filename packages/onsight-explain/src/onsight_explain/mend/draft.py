"""The text of a user's file while it is mended: only the places that a mend names are touched."""

import ast
import io
import re
import tokenize
import warnings
from pathlib import Path

from onsight_explain.errors import ExplainError
from onsight_explain.tracing.sites import Site
from onsight_lint.source import SourceFile

Change = tuple[int, int, str]  # from, to (indices into the text), the new text

_PLAIN_UNIT = "    "


class CannotMend(Exception):
    """A mend that cannot be made with certainty, with the reason in words."""


class Draft:
    """A file's text, its syntax tree after every change, and where its original places are now."""

    def __init__(self, path: Path, raw: bytes) -> None:
        """Raises SyntaxError or ValueError for a file that is not Python."""
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        self.path, self.encoding = path, encoding
        text = re.sub(r"\r(?!\n)", "\n", raw.decode(encoding))
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.source = self.original = _parsed(path, text)
        self.history: list[list[Change]] = []
        self.unit = _unit(self.source)

    @property
    def text(self) -> str:
        """The text as it is now, with the file's own line ends."""
        return self.source.text

    def encoded(self) -> bytes:
        """The text as bytes, in the file's own encoding, with its byte order mark."""
        return self.text.encode(self.encoding)

    def change(self, changes: list[Change]) -> None:
        """Replace parts of the text. Raises CannotMend if it would not be Python any more."""
        ordered = sorted(changes, key=lambda one: one[:2])
        text, done = [], 0
        for start, end, new in ordered:
            if start < done:
                raise CannotMend("two changes of one place")
            text += [self.text[done:start], new.replace("\n", self.newline)]
            done = end
        text.append(self.text[done:])
        try:
            self.source = _parsed(self.path, "".join(text))
        except SyntaxError as error:
            raise CannotMend(f"the change would not be Python: {error.msg}") from error
        self.history.append(
            [(start, end, new.replace("\n", self.newline)) for start, end, new in ordered]
        )

    def now(self, offset: int) -> int:
        """Where a character of the original text is now."""
        for changes in self.history:
            moved = 0
            for start, end, new in changes:
                if start <= offset and (end <= offset or start == end):
                    moved += len(new) - (end - start)
                elif start <= offset:
                    moved += start - offset  # what replaced it
            offset += moved
        return offset

    def line_now(self, line: int) -> int:
        """Where an original line is now."""
        return self.text.count("\n", 0, self._place(line)) + 1

    def original_line(self, line: int) -> int:
        """The last original line that is not below a line as it is now."""
        lines = range(1, len(self.original.lines) + 1)
        return max((one for one in lines if self.line_now(one) <= line), default=1)

    def statement(self, site: Site) -> ast.stmt:
        """The innermost statement at a site. Raises CannotMend if there is none."""
        if site.end:
            return self.source.statement(self.call(site))
        line = self.line_now(site.line)
        found = [
            one
            for one in self.source.nodes
            if isinstance(one, ast.stmt) and one.lineno <= line <= (one.end_lineno or one.lineno)
        ]
        if not found:
            raise CannotMend(f"there is no statement in line {site.line}")
        # The innermost; of several in one line, the first.
        return min(found, key=lambda one: (_length(one), one.lineno, one.col_offset))

    def call(self, site: Site, name: str = "") -> ast.Call:
        """The call at a site: the one that ends there; by line only, the one of that name."""
        calls = [one for one in self.source.nodes if isinstance(one, ast.Call)]
        if site.end:
            last = self.now(self.original.offset(site.end) - 1)
            found = [one for one in calls if self.source.end(one) - 1 == last]
        else:
            line = self.line_now(site.line)
            found = [one for one in calls if one.lineno <= line <= (one.end_lineno or line)]
            found = [one for one in found if called(one) == name]
        if len(found) != 1:
            raise CannotMend(f"line {site.line} has {len(found) or 'no'} calls of {name or 'it'}")
        return found[0]

    def _place(self, number: int) -> int:
        if not 1 <= number <= len(self.original.lines):
            raise CannotMend(f"there is no line {number}")
        line = self.original.lines[number - 1]
        start = self.original.offset((number, 0))
        return self.now(start + len(line) - len(line.lstrip()))


def called(call: ast.Call) -> str:
    """The last part of the name that is called, or ""."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _length(statement: ast.stmt) -> int:
    return (statement.end_lineno or statement.lineno) - statement.lineno


def _parsed(path: Path, text: str) -> SourceFile:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the script's own escape sequences
        return SourceFile(path, text, ast.parse(text), "")


def _unit(source: SourceFile) -> str:
    """What the file indents a block by."""
    for node in source.nodes:
        body = getattr(node, "body", None)
        if isinstance(node, ast.stmt) and isinstance(body, list) and body[0].lineno > node.lineno:
            outer, inner = source.indentation(node), source.indentation(body[0])
            if inner.startswith(outer) and re.fullmatch(r"[ \t]+", inner[len(outer) :]):
                return inner[len(outer) :]
    return _PLAIN_UNIT


def read_draft(path: Path) -> Draft:
    """A file as it is on the disk. Raises ExplainError if it cannot be read or is not Python."""
    try:
        return Draft(path, path.read_bytes())
    except OSError as error:
        raise ExplainError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (SyntaxError, ValueError) as error:
        raise ExplainError(f"{path} is not a Python script: {error}.") from error
