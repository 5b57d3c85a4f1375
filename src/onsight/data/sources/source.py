"""What every source provides: an index, a way to read a row, and a fingerprint."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.data.index import SPLIT_NAMES, UNSPLIT, Index, Problem
from onsight.errors import ImageError
from onsight.words import plural

Pixels = NDArray[np.uint8]

_SIZED = 256  # images sampled for their size


class Room(NamedTuple):
    """Bytes of the largest file, and the most for copies of files on this machine."""

    each_bytes: int
    most_bytes: float


HERE = Room(0, math.inf)  # files of this machine need no copies


@dataclass(frozen=True)
class Shards:
    """The parts of DATA that are best read one after the other, as tar files of an object store.

    of: int32 (n,) the part that each row is in; file_of: int32 (parts,) the file that it is of;
    expect: is told which parts come next; room: for copies of files on this machine.
    """

    of: NDArray[np.int32]
    file_of: NDArray[np.int32]
    expect: Callable[[Sequence[int]], None] = lambda parts: None
    room: Room = HERE


@dataclass(frozen=True)
class Source:
    """DATA, recognised and listed.

    read(row) returns an image's encoded bytes, or its pixels uint8 (H, W, C) if the container
    holds plain pixels; it is safe to call from several threads and raises ImageError for an
    image that cannot be read. found: one line that says what DATA was recognised as, with the
    flag that overrides it. fingerprint: changes whenever any file behind the index changes;
    notes: what the user should know about the whole; groups, times: of each row, if the source
    says which images belong together, or when they were taken (seconds, or any number that
    grows); shards: where rows lie, if it is slow to read them in any order.
    """

    kind: str
    root: Path
    index: Index
    read: Callable[[int], bytes | Pixels]
    fingerprint: str
    found: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    groups: Sequence[str] | None = None
    times: NDArray[np.float64] | None = None
    shards: Shards | None = None

    def files(self) -> Iterator[str]:
        """The path of DATA if it is a file, and those of its images if each is one of its own."""
        folder = self.root
        if not folder.is_dir():
            yield str(folder)
            folder = folder.parent
        for locator in self.index.locators:
            yield os.path.join(folder, locator)

    @cached_property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(height, width) in pixels of up to 256 images, spread over the source and read once."""
        rows = np.unique(np.linspace(0, len(self.index) - 1, _SIZED).astype(int))
        found = (_size(self, row) for row in rows.tolist())
        return tuple(size for size in found if size)


def fingerprint(parts: Iterable[object]) -> str:
    """A digest of the facts that identify a source's content."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, ensure_ascii=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def found_line(what: str, index: Index, size: str, notes: Iterable[str] = ()) -> str:
    """`class folders with train/test, 10 classes, 70,000 files (override with --data-format)`.

    size: how much there is, usable or not; notes: what was skipped and why.
    """
    classes = plural(len(index.classes), "class", "classes")
    parts = [f"{what}{_given_splits(index)}", classes, size, *notes]
    return f"{', '.join(parts)} (override with --data-format)"


def is_memory_name(name: str) -> bool:
    """Whether DATA of this name was in memory, where no command finds it again."""
    return re.fullmatch(r".+ in memory \([0-9,]+\)", name) is not None


def hidden_note(hidden: int) -> list[str]:
    """A note on hidden files and folders, if there are any."""
    return [f"{plural(hidden, 'hidden entry', 'hidden entries')} skipped"] if hidden else []


def _size(source: Source, row: int) -> tuple[int, int] | None:
    """(height, width) of an image, or None if it cannot be read."""
    from onsight.data.pillow_pixels import probe  # loads Pillow; finding a source does without

    try:
        content = source.read(row)
    except ImageError:
        return None
    if isinstance(content, bytes):
        found = probe(content)
        return found[:2] if found else None
    return content.shape[0], content.shape[1]


def _given_splits(index: Index) -> str:
    """` with train/test` for the splits that come with DATA."""
    present = sorted(set(index.splits.tolist()) - {UNSPLIT})
    return f" with {'/'.join(SPLIT_NAMES[split] for split in present)}" if present else ""
