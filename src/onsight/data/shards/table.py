"""The images of all shards as flat arrays, read shard by shard and kept in the cache folder."""

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
from onsight.data.shards.shard_index import INDEX_NAME, ListedShard
from onsight.data.shards.store import Shard, ShardStore

VERSION = 4  # increase it when other images or labels may be found in the same shards
_PREFETCHED = 4  # number of shards copied while one is read
_BLOCK_BYTES = 8 << 20  # bytes that are read at once for a checksum
_SAVE_EVERY_SECONDS = 60.0  # interval; a killed first pass continues from the last save

ShardImage = tuple[str, str, tuple[int, int]]  # its locator, label and position


@dataclass(frozen=True)
class ShardRows:
    """The n images of a shard, and its unusable entries."""

    shard: Shard
    locators: TextColumn  # (n,)
    labels: NDArray[np.int32]  # (n,) indices into names
    names: tuple[str, ...]
    positions: NDArray[np.int64]  # (n, 2): offset and bytes in a tar, row group and row in Parquet
    problems: list[Problem] = field(default_factory=list)
    digest: str = ""  # the shard's SHA-256, if it is known

    @classmethod
    def of(cls, shard: Shard, images: Sequence[ShardImage], problems: list[Problem]) -> "ShardRows":
        """Build from the images of a shard."""
        names = tuple(sorted({label for _, label, _ in images}))
        codes = {name: code for code, name in enumerate(names)}
        return cls(
            shard,
            TextColumn.of(locator for locator, _, _ in images),
            np.fromiter((codes[label] for _, label, _ in images), np.int32, len(images)),
            names,
            np.array([position for _, _, position in images], np.int64).reshape(-1, 2),
            problems,
        )

    @classmethod
    def broken(cls, shard: Shard, reason: object) -> "ShardRows":
        """Build for a shard that cannot be used, with only a problem."""
        return cls.of(shard, [], [Problem(shard.name, "scan", f"a broken shard: {reason}")])


@dataclass(frozen=True)
class ShardTable:
    """The rows of s shards, one shard after the other."""

    shards: list[Shard]
    starts: NDArray[np.int64]  # (s + 1,) the first row of each shard
    locators: TextColumn  # (n,)
    labels: NDArray[np.int32]  # (n,) indices into names
    names: tuple[str, ...]
    positions: NDArray[np.int64]  # (n, 2) as in ShardRows
    problems: list[list[Problem]]  # one list per shard
    digests: list[str]  # one SHA-256 per shard, empty if unknown

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shard_of_row(self) -> NDArray[np.int32]:
        """The shard of each image: int32 (n,)."""
        numbers = np.arange(len(self.shards), dtype=np.int32)
        return np.repeat(numbers, np.diff(self.starts))

    @classmethod
    def of(cls, parts: Sequence[ShardRows]) -> "ShardTable":
        """Concatenate the rows of shards."""
        codes: dict[str, int] = {}
        labels = [np.zeros(0, np.int32)]
        for part in parts:
            part_codes = [codes.setdefault(name, len(codes)) for name in part.names]
            labels.append(np.array(part_codes, np.int32)[part.labels])
        starts = np.array([0, *accumulate(len(part.labels) for part in parts)], np.int64)
        return cls(
            [part.shard for part in parts],
            starts,
            _concatenate([part.locators for part in parts]),
            np.concatenate(labels),
            tuple(codes),
            np.concatenate([np.zeros((0, 2), np.int64), *(part.positions for part in parts)]),
            [part.problems for part in parts],
            [part.digest for part in parts],
        )

    def part(self, index: int) -> ShardRows:
        """Return the rows of one shard."""
        start, end = self.starts[index], self.starts[index + 1]
        offsets = self.locators.offsets[start : end + 1]
        used, labels = np.unique(self.labels[start:end], return_inverse=True)
        return ShardRows(
            self.shards[index],
            TextColumn(self.locators.blob[offsets[0] : offsets[-1]], offsets - offsets[0]),
            labels.astype(np.int32),
            tuple(self.names[code] for code in used),
            self.positions[start:end],
            self.problems[index],
            self.digests[index],
        )


def read_shard_table(
    store: ShardStore, read: Callable[[int], ShardRows], file: Path | None
) -> ShardTable:
    """Return the rows of all shards; only shards that are new or changed are read.

    read: return the rows of a shard by its index; file: the table's path, None to keep nothing.
    Shards read before a failure are kept too.
    """
    saved = _load(file) if file else None
    table = saved if saved and saved.shards == list(store.shards) else None
    if table is None:
        table = _read_new(store, read, file, saved)
    store.digests.update((n, digest) for n, digest in enumerate(table.digests) if digest)
    return table


def find_table_file(cache_folder: Path | None, *facts: object) -> Path | None:
    """Return a table's path. facts: everything the table depends on, apart from the shards."""
    if cache_folder is None:
        return None
    digest = hashlib.sha256(json.dumps([VERSION, *facts], default=str).encode()).hexdigest()
    return cache_folder / "shard-indexes" / f"{digest[:32]}.safetensors"


def _read_new(
    store: ShardStore,
    read: Callable[[int], ShardRows],
    file: Path | None,
    saved: ShardTable | None,
) -> ShardTable:
    known = {shard: index for index, shard in enumerate(saved.shards)} if saved else {}
    rows = {
        index: saved.part(known[shard])
        for index, shard in enumerate(store.shards)
        if saved and shard in known
    }
    # Backwards: decoding starts with the first shards, which then are the most recent copies.
    new = [index for index in reversed(range(len(store.shards))) if index not in rows]
    last_save = time.monotonic()
    try:
        for done, index in enumerate(new):
            store.prefetch(new[done : done + _PREFETCHED])
            damage = _find_damage(store, index)
            shard_rows = ShardRows.broken(store.shards[index], damage) if damage else read(index)
            rows[index] = replace(shard_rows, digest=store.digests.get(index, ""))
            if file and time.monotonic() - last_save > _SAVE_EVERY_SECONDS:
                _save(file, _join_in_order(rows))
                last_save = time.monotonic()
    finally:
        if file and rows:
            _save(file, _join_in_order(rows))
    return _join_in_order(rows)


def _find_damage(store: ShardStore, index: int) -> str:
    """Return how a shard differs from what the index beside it lists, or nothing."""
    shard = store.shards[index]
    expected = shard.listed
    if expected.size is not None and expected.size != shard.size:
        return f"it has {shard.size:,} bytes, but {INDEX_NAME} lists {expected.size:,}"
    if expected.md5sum is None:
        return ""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        opened = store.open(index)
        for start in range(0, shard.size, _BLOCK_BYTES):
            digest.update(opened.read(start, _BLOCK_BYTES))
    except OSError as error:
        return str(error)
    is_intact = digest.hexdigest() == expected.md5sum
    return "" if is_intact else f"its content does not have the MD5 checksum in {INDEX_NAME}"


def _join_in_order(rows: dict[int, ShardRows]) -> ShardTable:
    return ShardTable.of([rows[index] for index in sorted(rows)])


def _concatenate(columns: Sequence[TextColumn]) -> TextColumn:
    blobs = [column.blob for column in columns]
    shifts = accumulate((len(blob) for blob in blobs), initial=0)
    offsets = [column.offsets[1:] + shift for column, shift in zip(columns, shifts, strict=False)]
    return TextColumn(
        np.concatenate([np.zeros(0, np.uint8), *blobs]),
        np.concatenate([np.zeros(1, np.int64), *offsets]),
    )


def _save(file: Path, table: ShardTable) -> None:
    import torch

    from onsight.tensorfile import write_tensors

    columns = {
        "starts": table.starts,
        "locators": table.locators.blob,
        "locator_offsets": table.locators.offsets,
        "labels": table.labels,
        "places": table.positions,
    }
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    facts = {
        "shards": [list(shard) for shard in table.shards],
        "names": list(table.names),
        "problems": [[list(problem) for problem in problems] for problems in table.problems],
        "digests": table.digests,
    }
    write_tensors(file, tensors, facts)


def _load(file: Path) -> ShardTable | None:
    """Return the table in a file, or None if there is none or it is damaged."""
    from onsight.tensorfile import DamagedFile, read_tensors

    try:
        tensors, facts = read_tensors(file)
        columns: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        return ShardTable(
            [
                Shard(name, size, version, ListedShard(*listed))
                for name, size, version, listed in facts["shards"]
            ],
            columns["starts"],
            TextColumn(columns["locators"], columns["locator_offsets"]),
            columns["labels"],
            tuple(facts["names"]),
            columns["places"],
            [[Problem(*fields) for fields in problems] for problems in facts["problems"]],
            facts["digests"],
        )
    except (DamagedFile, LookupError, TypeError):
        return None
