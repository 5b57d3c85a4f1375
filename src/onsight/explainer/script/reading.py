"""Reads a script's text."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onsight.errors import DataError
from onsight_lint.errors import LintError
from onsight_lint.read import Finding, read_script
from onsight_lint.source import decoded, parsed, read_content


def parse_script(script: Path) -> ast.Module:
    """The syntax tree of a script. Raises DataError if it has none."""
    with _read_errors():
        return parsed(script, decoded(script, read_content(script)))


def find_mistakes(script: Path) -> list[Finding]:
    """The mistakes that reading a script reveals. Raises DataError."""
    with _read_errors():
        return read_script(script)


@contextmanager
def _read_errors() -> Iterator[None]:
    try:
        yield
    except LintError as error:
        raise DataError(str(error)) from error
