"""The line that says what DATA was taken for."""

from collections.abc import Iterable

from onsight.data.index import SPLIT_NAMES, UNSPLIT, Index
from onsight.words import plural


def found_line(what: str, index: Index, size: str, notes: Iterable[str] = ()) -> str:
    """`class folders with train/test, 10 classes, 70,000 files (override with --data-format)`.

    size: how much there is, usable or not; notes: what was left out and why.
    """
    classes = plural(len(index.classes), "class", "classes")
    parts = [f"{what}{_given_splits(index)}", classes, size, *notes]
    return f"{', '.join(parts)} (override with --data-format)"


def hidden_note(hidden: int) -> list[str]:
    """The note on hidden files and folders, when there are any."""
    return [f"{plural(hidden, 'hidden entry', 'hidden entries')} skipped"] if hidden else []


def _given_splits(index: Index) -> str:
    """` with train/test` for the splits that DATA itself states."""
    present = sorted(set(index.splits.tolist()) - {UNSPLIT})
    return f" with {'/'.join(SPLIT_NAMES[split] for split in present)}" if present else ""
