"""Sources whose files hold arrays of plain pixels: IDX, CIFAR, generated vectors."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.data.cache import file_state
from onsight.data.index import SPLIT_NAMES, Index, Row
from onsight.data.sources.source import Pixels, Source, compute_fingerprint, describe
from onsight.errors import DataError
from onsight.text import plural


class LabelledImages(NamedTuple):
    """The images of one file, all of one split."""

    split: int
    pixels: Pixels  # (n, H, W, C)
    labels: NDArray[np.integer]  # (n,)


def build_array_source(
    kind: str,
    what: str,
    folder: Path,
    files: Iterable[Path],
    parts: Sequence[LabelledImages],
    names: Sequence[str],
) -> Source:
    """Return the source of some image arrays, in their order.

    files: all files read, for the fingerprint; names: class names by label, or empty to use the
    labels as class names. Raises DataError for a label without a name.
    """
    index = Index.of(_list_rows(parts, names, folder))
    arrays = [part.pixels for part in parts]
    starts = list(accumulate(map(len, arrays), initial=0))

    def read(row: int) -> Pixels:
        """Return contiguous pixels (H, W, C)."""
        number = bisect_right(starts, row) - 1
        return np.ascontiguousarray(arrays[number][row - starts[number]])

    return Source(
        kind=kind,
        root=folder,
        index=index,
        read=read,
        fingerprint=compute_fingerprint([kind, *(file_state(file) for file in files)]),
        description=describe(what, index, plural(len(index), "image")),
    )


def _list_rows(parts: Sequence[LabelledImages], names: Sequence[str], folder: Path) -> list[Row]:
    """Return rows with locators such as train/00000, numbered within each split."""
    rows: list[Row] = []
    counts = dict.fromkeys(range(len(SPLIT_NAMES)), 0)
    for part in parts:
        start, split = counts[part.split], SPLIT_NAMES[part.split]
        for index, label in enumerate(part.labels.tolist(), start):
            name = _name_label(label, names, folder)
            rows.append(Row(f"{split}/{index:05d}", name, part.split))
        counts[part.split] += len(part.labels)
    if not rows:
        raise DataError(f"the files in {folder} hold no images")
    return rows


def _name_label(label: int, names: Sequence[str], folder: Path) -> str:
    if not names:
        return str(label)
    if not 0 <= label < len(names):
        raise DataError(f"{folder} has images of label {label}, but only {len(names)} names")
    return names[label]
