"""Reads a script's text."""

import ast
from pathlib import Path

from onsight.lint.source import parsed, read_text


def parse_script(script: Path) -> ast.Module:
    """The syntax tree of a script. Raises DataError if it has none."""
    return parsed(script, read_text(script))
