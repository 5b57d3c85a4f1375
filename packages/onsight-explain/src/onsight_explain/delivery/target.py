"""Where a mended script may be written: never over a file of the user's."""

from pathlib import Path

from onsight_explain.errors import ExplainError
from onsight_explain.files import check_output

MARK = "Mended by Onsight from"  # in a comment at the top of the files that we write


def check_target(script: Path, target: Path) -> Path:
    """The path to write to. Raises ExplainError if that would replace anything but our own file."""
    path = check_output(target, "--write", [script])
    if path.exists() and MARK not in _first_lines(path):
        raise ExplainError(
            f"{target} exists and is not a mended script: delete it, or name another"
        )
    return path


def _first_lines(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(1000).decode("utf-8", "replace")
