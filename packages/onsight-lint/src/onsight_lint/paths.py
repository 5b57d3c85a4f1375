"""The Python files that paths on a command line stand for."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from onsight_lint.errors import ReadError

_SKIPPED = frozenset({"build", "dist", "node_modules", "site-packages", "venv", "__pycache__"})


def python_files(paths: Sequence[Path]) -> list[Path]:
    """The files among the paths, and every .py file in the folders, each once, as absolute paths.

    Hidden folders, environments and what is built or installed are left out, unless they are
    named. Raises ReadError for a path that does not exist or a folder without Python files.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ReadError(f"{path} does not exist.")
        if not path.is_dir() and not path.is_file():
            raise ReadError(f"{path} is not a file.")
        inside = list(_inside(path)) if path.is_dir() else [path]
        if not inside:
            raise ReadError(f"{path} has no Python files.")
        found += [Path(os.path.abspath(one)) for one in inside]
    return list(dict.fromkeys(found))


def shown(path: Path) -> str:
    """A path as messages name it: relative to the working folder, if it lies inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _inside(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not _is_skipped(here / name))
        python = (here / name for name in sorted(names) if name.endswith(".py"))
        yield from (path for path in python if path.is_file())


def _is_skipped(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in _SKIPPED
    return hidden or (folder / "pyvenv.cfg").exists()
