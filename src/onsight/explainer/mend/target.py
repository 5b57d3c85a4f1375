"""Where a mended script may be written: never over a file of the user's."""

from pathlib import Path

from onsight.errors import OutputError
from onsight.files import check_output, user_path

MARK = "Mended by Onsight from"  # in a comment at the top of the files that we write


def check_target(script: Path, target: Path) -> Path:
    """The path to write to. Raises OutputError if that would replace anything but our own file."""
    path = user_path(target)
    check_output("--write", path, script=script)
    if path.exists() and MARK not in _first_lines(path):
        raise OutputError(f"{target} exists and is not a mended script: delete it, or name another")
    return path


def _first_lines(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(1000).decode("utf-8", "replace")
