"""`Source`: a dataset that was recognised and listed, and selections of its images."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.data.index import (
    SPLIT_NAMES,
    SPLIT_WORDS,
    TEST,
    UNSPLIT,
    VALIDATION,
    Index,
    Problem,
)
from onsight.data.shards.table import VERSION, ShardTable
from onsight.errors import DataError, ImageError
from onsight.text import plural

Pixels = NDArray[np.uint8]

DRAW_STAGE = "draw"  # stage of Problems for intact images outside a selection
_SIZE_SAMPLE = 256  # number of images whose size is read
_NON_LETTERS = re.compile(r"[^a-z]+")


class CopySpace(NamedTuple):
    """How much disk space local copies of remote files need and may use."""

    largest_bytes: int  # size of the largest file
    limit_bytes: float  # limit for all copies together


NO_COPIES = CopySpace(0, math.inf)  # local files need no copies


@dataclass(frozen=True)
class ShardLayout:
    """Which rows are stored together, in a source that should be read part by part.

    A part is a tar file, or a row group of a Parquet file.
    """

    part_of_row: NDArray[np.int32]  # (n,) part index
    file_of_part: NDArray[np.int32]  # (parts,) file index
    prefetch: Callable[[Sequence[int]], None] = lambda parts: None  # start copying these parts
    copies: CopySpace = NO_COPIES


@dataclass(frozen=True)
class Source:
    """A dataset that was recognised and listed; no image has been read yet."""

    kind: str
    root: Path
    index: Index
    # Return the encoded bytes of row i, or pixels uint8 (H, W, C) if the container holds plain
    # pixels. Safe to call from several threads. Raises ImageError if the image cannot be read.
    read: Callable[[int], bytes | Pixels]
    fingerprint: str  # digest that changes with any file behind the index
    description: str  # one line: the recognised format, classes and size
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # remarks on the dataset as a whole
    groups: Sequence[str] | None = None  # (n,) group names; images of one group stay in one split
    times: NDArray[np.float64] | None = None  # (n,) time of each image; any growing number
    shards: ShardLayout | None = None  # None if rows can be read in any order at no extra cost
    given_name: str = ""  # DATA as the user wrote it

    @property
    def name(self) -> str:
        """DATA as results and messages show it."""
        return self.given_name or str(self.root)

    def files(self) -> Iterator[str]:
        """Yield the dataset's path if it is a file, then the path of each image."""
        folder = self.root
        if not folder.is_dir():
            yield str(folder)
            folder = folder.parent
        for locator in self.index.locators:
            yield os.path.join(folder, locator)

    @cached_property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(height, width) in pixels of up to 256 images, evenly spread over the source."""
        rows = np.unique(np.linspace(0, len(self.index) - 1, _SIZE_SAMPLE).astype(int))
        sizes = (_read_size(self, row) for row in rows.tolist())
        return tuple(size for size in sizes if size)

    @cached_property
    def is_encoded(self) -> bool:
        """Whether the images have to be decoded, as far as the first of them shows."""
        try:
            return isinstance(self.read(0), bytes)
        except ImageError:
            return True


def compute_fingerprint(parts: Iterable[object]) -> str:
    """Return a SHA-256 digest of JSON-like values that identify a source's content."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, default=str).encode() + b"\n")
    return digest.hexdigest()


def describe(what: str, index: Index, size: str, notes: Iterable[str] = ()) -> str:
    """Return a source's description for the console.

    For example `class folders with train/test, 10 classes, 70,000 files`. size: the number of
    files or images, usable or not; notes: skipped files.
    """
    present = sorted(set(index.splits.tolist()) - {UNSPLIT})
    splits = f" with {'/'.join(SPLIT_NAMES[split] for split in present)}" if present else ""
    classes = plural(len(index.classes), "class", "classes")
    return ", ".join([f"{what}{splits}", classes, size, *notes])


def find_split_word(name: str, separators: re.Pattern[str] = _NON_LETTERS) -> int:
    """Return the split named by a word of `name` (train-00000-of-00002.parquet), else UNSPLIT."""
    words = separators.split(name.lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), UNSPLIT)


def is_memory_name(name: str) -> bool:
    """Return whether a dataset of this name was passed in memory: no command can reopen it."""
    return re.fullmatch(r".+ in memory \([0-9,]+\)", name) is not None


def note_hidden(count: int) -> list[str]:
    """Return a note on skipped hidden files and folders, or no note if there were none."""
    return [f"{plural(count, 'hidden entry', 'hidden entries')} skipped"] if count else []


def build_table_source(
    kind: str,
    what: str,
    find_split: Callable[[str], int],
    root: Path,
    table: ShardTable,
    read: Callable[[int], bytes],
    shards: ShardLayout,
) -> Source:
    """Return the source of the images in a shard table.

    what: the format as the user reads it; find_split: return the split for a shard's name. Raises
    DataError if there is no usable image.
    """
    problems = [problem for shard_problems in table.problems for problem in shard_problems]
    if not len(table):
        example = f", such as {problems[0].path}: {problems[0].reason}" if problems else ""
        raise DataError(f"{root} holds no shard with images and labels{example}")
    splits = np.array([find_split(shard.name) for shard in table.shards], np.int8)
    counts = np.diff(table.starts)
    index = Index.of_columns(table.locators, table.labels, table.names, np.repeat(splits, counts))
    size = f"{plural(len(table), 'image')} in {plural(int((counts > 0).sum()), 'shard')}"
    return Source(
        kind=kind,
        root=root,
        index=index,
        read=read,
        fingerprint=compute_fingerprint([kind, VERSION, str(root), *table.shards]),
        description=describe(what, index, size),
        problems=problems,
        shards=shards,
    )


def select_rows(source: Source, rows: NDArray[np.int64]) -> Source:
    """Return a source with only these rows, in this order."""
    shards = source.shards
    return replace(
        source,
        index=source.index.take(rows),
        read=lambda row: source.read(int(rows[row])),
        fingerprint=compute_fingerprint([source.fingerprint, rows.tolist()]),
        groups=[source.groups[row] for row in rows.tolist()] if source.groups else None,
        times=None if source.times is None else source.times[rows],
        shards=shards and replace(shards, part_of_row=shards.part_of_row[rows]),
    )


def list_unselected(source: Source, rows: NDArray[np.int64], reason: str) -> list[Problem]:
    """Return a Problem with this reason for every row that is not in `rows`."""
    locators = source.index.locators
    others = np.setdiff1d(np.arange(len(source.index)), rows)
    return [Problem(locators[int(row)], DRAW_STAGE, reason) for row in others]


def count_held_out(source: Source) -> int:
    """Return the number of images in the test and validation splits that come with the data."""
    return int(is_held_out(source).sum())


def draw_rows(source: Source, count: int, seed: int) -> NDArray[np.int64]:
    """Return all given test and validation rows, then `count` random rows of the others.

    At least one row of each class is selected, the others in proportion to class sizes. A smaller
    count selects the first rows of a larger count's selection.
    """
    order = draw_order(source, seed)
    held_out = is_held_out(source)
    free = order[~held_out[order]]
    least = len(np.unique(source.index.labels[free]))
    return np.concatenate([np.flatnonzero(held_out), free[: max(count, least)]])


def draw_order(source: Source, seed: int) -> NDArray[np.int64]:
    """Return all rows in a random order, but one training image of each class first."""
    order = np.random.default_rng(seed).permutation(len(source.index))
    free = np.flatnonzero(~is_held_out(source)[order])
    _, first = np.unique(source.index.labels[order[free]], return_index=True)
    return np.concatenate([order[free[first]], np.delete(order, free[first])])


def is_held_out(source: Source) -> NDArray[np.bool_]:
    """Return which rows are in the test and validation splits that come with the data, (n,)."""
    return np.isin(source.index.splits, (TEST, VALIDATION))


def take_drawn(source: Source, count: int, seed: int) -> Source:
    """Return the source with `count` training images, all of them if 0; the others are problems."""
    if not count:
        return source
    rows = draw_rows(source, count, seed)
    if len(rows) == len(source.index):
        return source
    reason = f"not among the images drawn (--train-images {count})"
    problems = [*source.problems, *list_unselected(source, rows, reason)]
    return replace(select_rows(source, rows), problems=problems)


def _read_size(source: Source, row: int) -> tuple[int, int] | None:
    """Return (height, width) of an image, or None if it cannot be read."""
    from onsight.data.pixels import probe  # loads Pillow, unneeded for finding a source

    try:
        content = source.read(row)
    except ImageError:
        return None
    if isinstance(content, bytes):
        facts = probe(content)
        return facts[:2] if facts else None
    return content.shape[0], content.shape[1]
