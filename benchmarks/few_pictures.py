"""A few training pictures of each class, drawn by a hash of their names; the test part stays whole.

Fewer pictures are always a part of more.
"""

from hashlib import sha256
from pathlib import Path

from finished_folder import finished_folder

ALL = slice(None)


def few_per_class(folder: Path, count: int) -> Path:
    """A folder beside this one with links to at most count training pictures of each class."""

    def fill(target: Path) -> None:
        link(folder / "train", target / "train", slice(count))
        link(folder / "test", target / "test")

    return finished_folder(folder.with_name(f"{folder.name}-{count}-per-class"), fill)


def link(source: Path, target: Path, which: slice = ALL) -> None:
    """Links to pictures of each class folder: to those in the slice of the class's order."""
    for place in source.iterdir():
        link_class(place, target / place.name, which)


def link_class(source: Path, target: Path, which: slice = ALL) -> None:
    """Links to the pictures of one class folder."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir(), key=_drawn)[which]:
        (target / path.name).symlink_to(path.resolve())


def _drawn(path: Path) -> bytes:
    return sha256(path.name.encode()).digest()
