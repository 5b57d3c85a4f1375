"""Sources whose files hold arrays of plain pixels."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.data.file_state import stat_facts
from onsight.data.index import SPLIT_NAMES, Index, Row
from onsight.data.sources.source import Pixels, Source, fingerprint, found_line
from onsight.errors import DataError
from onsight.words import plural


class Part(NamedTuple):
    """The images of one file. pixels: uint8 (n, H, W, C); labels: integers (n,)."""

    split: int
    pixels: Pixels
    labels: NDArray[np.integer]


def array_source(
    kind: str,
    what: str,
    folder: Path,
    files: Iterable[Path],
    parts: Sequence[Part],
    names: Sequence[str],
) -> Source:
    """A source of images in arrays, in the order of the parts.

    files: everything that was read, for the fingerprint; names: of the labels by number; if
    empty, the numbers are the names. Raises DataError for a label without a name.
    """
    index = Index.of(_rows(parts, names, folder))
    size = plural(len(index), "image")
    return Source(
        kind=kind,
        root=folder,
        index=index,
        read=_ArrayReader([part.pixels for part in parts]),
        fingerprint=fingerprint([kind, *(stat_facts(file) for file in files)]),
        found=found_line(what, index, size),
    )


def _rows(parts: Sequence[Part], names: Sequence[str], folder: Path) -> list[Row]:
    """Rows `train/00000`, numbered within each split."""
    rows: list[Row] = []
    counts = dict.fromkeys(range(len(SPLIT_NAMES)), 0)
    for part in parts:
        start, split = counts[part.split], SPLIT_NAMES[part.split]
        for number, label in enumerate(part.labels.tolist(), start):
            rows.append(Row(f"{split}/{number:05d}", _name(label, names, folder), part.split))
        counts[part.split] += len(part.labels)
    if not rows:
        raise DataError(f"the files in {folder} hold no images")
    return rows


def _name(label: int, names: Sequence[str], folder: Path) -> str:
    if not names:
        return str(label)
    if not 0 <= label < len(names):
        raise DataError(f"{folder} has images of label {label}, but only {len(names)} names")
    return names[label]


class _ArrayReader:
    """Reads row i as contiguous pixels (H, W, C)."""

    def __init__(self, arrays: Sequence[Pixels]) -> None:
        self._arrays = arrays
        self._starts = list(accumulate((len(array) for array in arrays), initial=0))

    def __call__(self, row: int) -> Pixels:
        place = bisect_right(self._starts, row) - 1
        return np.ascontiguousarray(self._arrays[place][row - self._starts[place]])
