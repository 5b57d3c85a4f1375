"""Reads a script's text."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onsight_explain.errors import ExplainError
from onsight_lint.errors import LintError
from onsight_lint.files import decode, read_content
from onsight_lint.read import read_script
from onsight_lint.rule import Finding
from onsight_lint.source import parse


def check_is_file(script: Path) -> None:
    """Raise ExplainError if there is no such script."""
    if script.is_dir():
        raise ExplainError(f"{script} is a folder: name the script in it that trains")
    if not script.is_file():
        raise ExplainError(f"{script} does not exist")


def parse_script(script: Path) -> ast.Module:
    """The syntax tree of a script. Raises ExplainError if it has none."""
    with _read_errors():
        return parse(script, decode(script, read_content(script)))


def find_mistakes(script: Path) -> list[Finding]:
    """The mistakes that reading a script reveals. Raises ExplainError."""
    with _read_errors():
        return read_script(script)


@contextmanager
def _read_errors() -> Iterator[None]:
    try:
        yield
    except LintError as error:
        raise ExplainError(str(error)) from error
