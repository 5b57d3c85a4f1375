"""The images of all shards as flat arrays, made shard by shard and kept in the cache."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsight.data.index import Problem, TextColumn
from onsight.data.shards.store import Shard, ShardStore

VERSION = 1
_AHEAD = 4  # shards that are copied while one is read
_SAVED_EVERY_SECONDS = 60.0  # of a long first pass, which then goes on where it was killed


@dataclass(frozen=True)
class ShardRows:
    """What a shard holds: n images, and what cannot be used.

    locators (n); labels int32 (n) into names; places int64 (n, 2): an image's offset and bytes in
    a tar, its row group and row in a Parquet file; digest: the shard's SHA-256, if it is known.
    """

    shard: Shard
    locators: TextColumn
    labels: NDArray[np.int32]
    names: tuple[str, ...]
    places: NDArray[np.int64]
    problems: list[Problem] = field(default_factory=list)
    digest: str = ""

    @classmethod
    def of(
        cls,
        shard: Shard,
        locators: Sequence[str],
        labels: Sequence[str],
        places: Sequence[tuple[int, int]],
        problems: list[Problem],
    ) -> "ShardRows":
        """From lists, an entry for each image."""
        names = tuple(sorted(set(labels)))
        number = {name: position for position, name in enumerate(names)}
        return cls(
            shard,
            TextColumn.of(locators),
            np.fromiter((number[label] for label in labels), np.int32, len(labels)),
            names,
            np.array(places, np.int64).reshape(-1, 2),
            problems,
        )


@dataclass(frozen=True)
class ShardTable:
    """The rows of all shards, one after the other; starts: (s + 1) where those of a shard begin."""

    shards: list[Shard]
    starts: NDArray[np.int64]
    locators: TextColumn
    labels: NDArray[np.int32]
    names: tuple[str, ...]
    places: NDArray[np.int64]
    problems: list[list[Problem]]
    digests: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shard_of(self) -> NDArray[np.int32]:
        """The shard of each image: int32 (n,)."""
        numbers = np.arange(len(self.shards), dtype=np.int32)
        return np.repeat(numbers, np.diff(self.starts))

    @classmethod
    def of(cls, parts: Sequence[ShardRows]) -> "ShardTable":
        """Put the shards' rows together."""
        number: dict[str, int] = {}
        labels = [np.zeros(0, np.int32)]
        for part in parts:
            codes = [number.setdefault(name, len(number)) for name in part.names]
            labels.append(np.array(codes, np.int32)[part.labels])
        starts = np.array([0, *accumulate(len(part.labels) for part in parts)], np.int64)
        return cls(
            [part.shard for part in parts],
            starts,
            _joined([part.locators for part in parts]),
            np.concatenate(labels),
            tuple(number),
            np.concatenate([np.zeros((0, 2), np.int64), *(part.places for part in parts)]),
            [part.problems for part in parts],
            [part.digest for part in parts],
        )

    def part(self, number: int) -> ShardRows:
        """The rows of one shard."""
        start, end = self.starts[number], self.starts[number + 1]
        offsets = self.locators.offsets[start : end + 1]
        kept, labels = np.unique(self.labels[start:end], return_inverse=True)
        return ShardRows(
            self.shards[number],
            TextColumn(self.locators.blob[offsets[0] : offsets[-1]], offsets - offsets[0]),
            labels.astype(np.int32),
            tuple(self.names[code] for code in kept),
            self.places[start:end],
            self.problems[number],
            self.digests[number],
        )


def read_table(
    store: ShardStore, read: Callable[[int], ShardRows], place: Path | None
) -> ShardTable:
    """The rows of all shards; only those are read that are new or changed since the last time.

    read: the rows of a shard by its number; place: the file where they are kept; None keeps
    nothing. What was read before a failure is kept too.
    """
    kept = _load(place) if place else None
    table = kept if kept and kept.shards == list(store.shards) else None
    if table is None:
        table = _read_new(store, read, place, kept)
    store.digests.update((n, digest) for n, digest in enumerate(table.digests) if digest)
    return table


def _read_new(
    store: ShardStore,
    read: Callable[[int], ShardRows],
    place: Path | None,
    kept: ShardTable | None,
) -> ShardTable:
    known = {shard: number for number, shard in enumerate(kept.shards)} if kept else {}
    found = {
        number: kept.part(known[shard])
        for number, shard in enumerate(store.shards)
        if kept and shard in known
    }
    # From the last on: decoding begins with the first, and finds those read last among the copies.
    new = [number for number in reversed(range(len(store.shards))) if number not in found]
    saved = time.monotonic()
    try:
        for done, number in enumerate(new):
            store.expect(new[done : done + _AHEAD])
            rows = read(number)
            found[number] = replace(rows, digest=store.digests.get(number, ""))
            if place and time.monotonic() - saved > _SAVED_EVERY_SECONDS:
                _save(place, _in_order(found))
                saved = time.monotonic()
    finally:
        if place and found:
            _save(place, _in_order(found))
    return _in_order(found)


def _in_order(found: dict[int, ShardRows]) -> ShardTable:
    return ShardTable.of([found[number] for number in sorted(found)])


def table_place(cache_folder: Path | None, *facts: object) -> Path | None:
    """Where the table of DATA is kept. facts: what it was made from, but for the shards."""
    if cache_folder is None:
        return None
    digest = hashlib.sha256(json.dumps([VERSION, *facts], default=str).encode()).hexdigest()
    return cache_folder / "shard-indexes" / f"{digest[:32]}.safetensors"


def _joined(columns: Sequence[TextColumn]) -> TextColumn:
    blobs = [column.blob for column in columns]
    shifts = accumulate((len(blob) for blob in blobs), initial=0)
    offsets = [column.offsets[1:] + shift for column, shift in zip(columns, shifts, strict=False)]
    return TextColumn(
        np.concatenate([np.zeros(0, np.uint8), *blobs]),
        np.concatenate([np.zeros(1, np.int64), *offsets]),
    )


def _save(place: Path, table: ShardTable) -> None:
    import torch

    from onsight.tensorfile import write_tensors

    columns = {
        "starts": table.starts,
        "locators": table.locators.blob,
        "locator_offsets": table.locators.offsets,
        "labels": table.labels,
        "places": table.places,
    }
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    facts = {
        "shards": [list(shard) for shard in table.shards],
        "names": list(table.names),
        "problems": [[list(one) for one in part] for part in table.problems],
        "digests": table.digests,
    }
    write_tensors(place, tensors, facts)


def _load(place: Path) -> ShardTable | None:
    """The table in a file, or None if there is none or it is damaged."""
    from onsight.tensorfile import DamagedFile, read_tensors

    try:
        tensors, facts = read_tensors(place)
        columns: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        return ShardTable(
            [Shard(*shard) for shard in facts["shards"]],
            columns["starts"],
            TextColumn(columns["locators"], columns["locator_offsets"]),
            columns["labels"],
            tuple(facts["names"]),
            columns["places"],
            [[Problem(*one) for one in part] for part in facts["problems"]],
            facts["digests"],
        )
    except (DamagedFile, LookupError, TypeError):
        return None
