"""A user's file while it is being fixed: its text, syntax tree, and edits of whole lines.

Edits replace only the code that a fix names; the rest stays as the user wrote it.
"""

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterable
from pathlib import Path

from onsight_explain.errors import ExplainError
from onsight_explain.tracing.sites import Site
from onsight_lint.edits import Change, apply_changes
from onsight_lint.source import SourceFile

_DEFAULT_INDENT = "    "


class CannotFix(Exception):
    """A fix cannot be made with certainty; the message is the reason."""


class Draft:
    """A file's text and syntax tree, with its edits, which map original to current positions."""

    def __init__(self, path: Path, raw: bytes) -> None:
        """Raises SyntaxError or ValueError for a file that is not Python."""
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        self.path, self.encoding = path, encoding
        text = re.sub(r"\r(?!\n)", "\n", raw.decode(encoding))
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.source = self.original = _parse(path, text)
        self.history: list[list[Change]] = []
        self.indent = _detect_indent(self.source)

    @property
    def text(self) -> str:
        """The current text, with the file's line ends."""
        return self.source.text

    def encoded(self) -> bytes:
        """Return the current text in the file's encoding, with its byte order mark."""
        return self.text.encode(self.encoding)

    def change(self, changes: Iterable[tuple[int, int, str]]) -> None:
        """Replace parts of the text.

        Raises CannotFix, and changes nothing, if two changes overlap or the result is not Python.
        """
        made = [Change(start, end, new.replace("\n", self.newline)) for start, end, new in changes]
        try:
            text = apply_changes(self.text, made)
        except ValueError as error:
            raise CannotFix("two changes overlap") from error
        try:
            self.source = _parse(self.path, text)
        except SyntaxError as error:
            raise CannotFix(f"the change would not be Python: {error.msg}") from error
        self.history.append(made)

    def current_offset(self, offset: int) -> int:
        """Return the current offset of a character of the original text."""
        for changes in self.history:
            shift = 0
            for start, end, new in changes:
                if start <= offset and (end <= offset or start == end):
                    shift += len(new) - (end - start)
                elif start <= offset:
                    shift += start - offset  # move to the start of the replacement
            offset += shift
        return offset

    def current_line(self, line: int) -> int:
        """Return the current number of an original line."""
        return self.text.count("\n", 0, self._first_character(line)) + 1

    def original_line(self, line: int) -> int:
        """Return the last original line that is not below a current line."""
        lines = range(1, len(self.original.lines) + 1)
        return max((number for number in lines if self.current_line(number) <= line), default=1)

    def find_statement(self, site: Site) -> ast.stmt:
        """Return the innermost statement at a site. Raises CannotFix if there is none."""
        if site.end:
            return self.source.statement(self.find_call(site))
        line = self.current_line(site.line)
        statements = [
            node
            for node in self.source.nodes
            if isinstance(node, ast.stmt)
            and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        if not statements:
            raise CannotFix(f"there is no statement in line {site.line}")
        # The innermost; of several in one line, the first.
        return min(statements, key=lambda node: (_line_count(node), node.lineno, node.col_offset))

    def find_call(self, site: Site, name: str = "") -> ast.Call:
        """Return the call at a site: the one that ends there or, by line only, that has the name.

        Raises CannotFix unless there is exactly one.
        """
        calls: list[ast.Call] = self.source.all(ast.Call)
        if site.end:
            last = self.current_offset(self.original.offset(site.end) - 1)
            calls = [call for call in calls if self.source.end(call) - 1 == last]
        else:
            line = self.current_line(site.line)
            calls = [call for call in calls if call.lineno <= line <= (call.end_lineno or line)]
            calls = [call for call in calls if called_name(call) == name]
        if len(calls) != 1:
            raise CannotFix(f"line {site.line} has {len(calls) or 'no'} calls of {name or 'it'}")
        return calls[0]

    def _first_character(self, number: int) -> int:
        if not 1 <= number <= len(self.original.lines):
            raise CannotFix(f"there is no line {number}")
        line = self.original.lines[number - 1]
        start = self.original.offset((number, 0))
        return self.current_offset(start + len(line) - len(line.lstrip()))


def read_draft(path: Path) -> Draft:
    """Read a file. Raises ExplainError if it cannot be read or is not Python."""
    try:
        return Draft(path, path.read_bytes())
    except OSError as error:
        raise ExplainError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (SyntaxError, ValueError) as error:
        raise ExplainError(f"{path} is not a Python script: {error}.") from error


def called_name(call: ast.Call) -> str:
    """Return the last part of the name that is called, or ""."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def replace_node(draft: Draft, node: ast.AST, code: str) -> Change:
    """Return the change that replaces the code of a node."""
    return Change(draft.source.start(node), draft.source.end(node), code)


# Blocks and whole lines


def block_of(draft: Draft, statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements of the block that contains a statement, itself included."""
    parent = draft.source.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    raise CannotFix("it is not a statement of a block")


def put_on_own_lines(draft: Draft, first: ast.stmt, last: ast.stmt) -> list[Change]:
    """Return the changes after which these statements of a block share no line with others.

    Raises CannotFix where the block is in one line with what it belongs to, after its colon.
    """
    block = block_of(draft, first)
    start, end = block.index(first), block.index(last)
    changes = []
    for left, right in ((start - 1, start), (end, end + 1)):
        if left >= 0 and right < len(block) and block[left].end_lineno == block[right].lineno:
            changes.append(_replace_semicolon(draft, block[left], block[right], block[0]))
    is_in_module = isinstance(draft.source.parents[first], ast.Module)
    if not is_in_module and not starts_line(draft, block[0]):
        raise CannotFix("its block is written behind the colon, in the same line")
    return changes


def starts_line(draft: Draft, node: ast.AST) -> bool:
    """Return whether a node is the first on its line."""
    return not draft.text[: draft.source.start(node)].rpartition("\n")[2].strip()


def line_start(draft: Draft, statement: ast.stmt) -> int:
    """Return the offset of the line on which a statement or its first decorator begins."""
    nodes = [statement, *getattr(statement, "decorator_list", [])]
    first = min(draft.source.start(node) for node in nodes)
    return draft.text.rfind("\n", 0, first) + 1


def line_end(draft: Draft, statement: ast.stmt) -> int:
    """Return the offset of the line after a statement, or the end of the text."""
    at = draft.text.find("\n", draft.source.end(statement))
    return len(draft.text) if at < 0 else at + 1


def insert_before(draft: Draft, statement: ast.stmt, text: str) -> Change:
    """Return the change that inserts lines above a statement, indented like it."""
    margin = draft.source.indentation(statement)
    at = line_start(draft, statement)
    return Change(at, at, "".join(f"{margin}{line}\n" for line in text.splitlines()))


def insert_after(draft: Draft, statement: ast.stmt, text: str) -> Change:
    """Return the change that inserts lines below a statement, indented like it."""
    margin = draft.source.indentation(statement)
    at = line_end(draft, statement)
    lines = "".join(f"{margin}{line}\n" for line in text.splitlines())
    if at == len(draft.text) and not draft.text.endswith("\n"):
        return Change(at, at, "\n" + lines.removesuffix("\n"))
    return Change(at, at, lines)


def indent_under(draft: Draft, first: ast.stmt, last: ast.stmt, opening: str) -> list[Change]:
    """Return the changes that put statements under a line such as `with x:`.

    The statements must be on separate lines. opening: the last line ends with the colon.
    """
    start, end = line_start(draft, first), line_end(draft, last)
    margin = draft.source.indentation(first)
    within_strings = _lines_within_strings(draft.text)
    above = "".join(f"{margin}{line}\n" for line in opening.splitlines())
    changes = [Change(start, start, f"{above}{draft.indent}")]
    at = draft.text.find("\n", start) + 1
    while 0 < at < end:
        line_number = draft.text.count("\n", 0, at) + 1
        stop = draft.text.find("\n", at) + 1
        line = draft.text[at : stop or len(draft.text)]
        if line.strip() and line_number not in within_strings:
            changes.append(Change(at, at, draft.indent))
        at = stop
    return changes


def describe_lines(draft: Draft, first: ast.stmt, last: ast.stmt) -> str:
    """Return `line 3` or `lines 3 to 5`, by the numbers in the original file."""
    begin, end = draft.original_line(first.lineno), draft.original_line(last.end_lineno or 0)
    return f"line {begin}" if begin == end else f"lines {begin} to {end}"


def _parse(path: Path, text: str) -> SourceFile:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ignore invalid escape sequences in the script
        return SourceFile(path, text, ast.parse(text), "")


def _detect_indent(source: SourceFile) -> str:
    """Return the indentation of the file's first indented block."""
    for node in source.nodes:
        body = getattr(node, "body", None)
        if isinstance(node, ast.stmt) and isinstance(body, list) and body[0].lineno > node.lineno:
            outer, inner = source.indentation(node), source.indentation(body[0])
            if inner.startswith(outer) and re.fullmatch(r"[ \t]+", inner[len(outer) :]):
                return inner[len(outer) :]
    return _DEFAULT_INDENT


def _line_count(statement: ast.stmt) -> int:
    return (statement.end_lineno or statement.lineno) - statement.lineno


def _replace_semicolon(draft: Draft, left: ast.stmt, right: ast.stmt, first: ast.stmt) -> Change:
    """Return the change that turns the semicolon between two statements into a line break."""
    start, end = draft.source.end(left), draft.source.start(right)
    between = draft.text[start:end]
    if between.replace(" ", "").replace("\t", "") != ";":
        raise CannotFix("two statements share its line")
    return Change(start, end, f"\n{draft.source.indentation(first)}")


def _lines_within_strings(text: str) -> set[int]:
    """Return the lines that begin inside a string, which indenting them would change."""
    lines: set[int] = set()
    starts: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
        name = tokenize.tok_name[token.type]
        if name == "STRING":
            lines.update(range(token.start[0] + 1, token.end[0] + 1))
        elif name.endswith("STRING_START"):  # of an f-string, from Python 3.12 on
            starts.append(token.start[0])
        elif name.endswith("STRING_END"):
            lines.update(range(starts.pop() + 1, token.end[0] + 1))
    return lines
