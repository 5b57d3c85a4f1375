"""Made folders appear under their name only when they are complete."""

import tempfile
from collections.abc import Callable
from pathlib import Path


def finished_folder(folder: Path, fill: Callable[[Path], object]) -> Path:
    """The folder; if there is none yet, fill makes it in an empty one beside it."""
    if not folder.exists():
        unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        fill(unfinished)
        unfinished.rename(folder)
    return folder
