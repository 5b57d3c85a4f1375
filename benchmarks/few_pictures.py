"""A few training pictures of each class, drawn by a hash of their names; the test part stays whole.

Fewer pictures are always a part of more.
"""

from hashlib import sha256
from pathlib import Path

from finished_folder import finished_folder


def few_per_class(folder: Path, count: int) -> Path:
    """A folder beside this one with links to at most count training pictures of each class."""

    def fill(target: Path) -> None:
        link(folder / "train", target / "train", count)
        link(folder / "test", target / "test")

    return finished_folder(folder.with_name(f"{folder.name}-{count}-per-class"), fill)


def link(source: Path, target: Path, count: int | None = None) -> None:
    """Links to the pictures of each class folder, at most count of each if given."""
    for place in source.iterdir():
        (target / place.name).mkdir(parents=True, exist_ok=True)
        for path in sorted(place.iterdir(), key=_drawn)[:count]:
            (target / place.name / path.name).symlink_to(path.resolve())


def _drawn(path: Path) -> bytes:
    return sha256(path.name.encode()).digest()
