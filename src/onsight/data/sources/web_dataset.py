"""WebDataset shards, here or remote: tar files of images with their labels beside them.

Source: https://github.com/webdataset/webdataset (members of one sample share their name up to the
first dot: 000.jpg, 000.cls).
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onsight.data.index import SPLIT_WORDS, UNSPLIT, Problem
from onsight.data.shards.store import ENDINGS, LocalShards, Shard, ShardStore
from onsight.data.shards.table import ShardRows, ShardTable, read_table, table_place
from onsight.data.sources.archive_tar import BrokenTar, TarReader, first_names, open_tar
from onsight.data.sources.read_file import check_size
from onsight.data.sources.sharded import sharded_source
from onsight.data.sources.source import HERE, Room, Shards, Source
from onsight.errors import ImageError
from onsight.limits import SHARD_LABEL_BYTES

LABELS = ("cls", "txt", "json")
_LOOKED_AT = 1000  # members by which shards are recognised


def holds_shards(folder: Path) -> bool:
    """Whether a folder has tar files of images with labels beside them, judged by the first."""
    for path in _shards(folder)[:1]:
        try:
            with open(path, "rb") as file:
                names = first_names(file, _LOOKED_AT)
        except (OSError, BrokenTar):
            return False
        endings = {_parts(name)[1] for name in names}
        return bool(endings & set(ENDINGS)) and bool(endings & set(LABELS))
    return False


def read_shards(folder: Path, cache_folder: Path | None = None) -> Source:
    """The samples of all shards in a folder; a broken shard, or a sample without label, is listed.

    The name of a shard, or of the folder that it is in, says its split. cache_folder: where the
    index is kept. Raises DataError if there is no usable sample.
    """
    root = Path(os.path.realpath(folder))
    return web_dataset(root, LocalShards(root, _shards(root)), cache_folder)


def web_dataset(
    root: Path, store: ShardStore, cache_folder: Path | None, room: Room = HERE
) -> Source:
    """The samples of these shards. room: for copies of the shards. Raises as `read_shards`."""
    place = table_place(cache_folder, "webdataset", str(root))
    table = read_table(store, lambda number: _rows(store, number), place)
    reader = _MemberReader(store, table)
    files = np.arange(len(table.shards), dtype=np.int32)
    shards = Shards(table.shard_of, files, store.expect, room)
    what = "WebDataset shards"
    return sharded_source("webdataset", what, _split_of, root, table, reader, shards)


def _shards(folder: Path) -> list[Path]:
    """The tar files of a folder and of the folders in it, by name."""
    return sorted([*folder.glob("*.tar"), *folder.glob("*/*.tar")])


def _rows(store: ShardStore, number: int) -> ShardRows:
    """What a shard holds; one that is broken holds nothing but a problem."""
    shard = store.shards[number]
    try:
        opened = store.open(number)
        with open(opened.number, "rb", closefd=False) as file:
            members, reader = open_tar(file)
    except (OSError, BrokenTar) as error:
        broken = Problem(shard.name, "scan", f"a broken shard: {error}")
        return ShardRows.of(shard, [], [], [], [broken])
    problems = [Problem(f"{shard.name}/{one.path}", *one[1:]) for one in members.problems]
    rows = _samples(shard, members.paths, reader, problems)
    del opened  # until here the reader's descriptor had to be open
    return rows


def _samples(
    shard: Shard, paths: Sequence[str], reader: TarReader, problems: list[Problem]
) -> ShardRows:
    """The samples among a shard's members."""
    beside: dict[str, int] = {}
    images: list[tuple[str, int]] = []
    for member, path in enumerate(paths):
        key, ending = _parts(path)
        if ending in ENDINGS:
            images.append((key, member))
        elif ending in LABELS:
            beside.setdefault(key, member)
    locators, labels, places = [], [], []
    for key, member in images:
        locator = f"{shard.name}/{paths[member]}"
        label = _label(reader, beside[key], paths[beside[key]]) if key in beside else ""
        if not label:
            reason = f"no label beside it ({', '.join(LABELS)})"
            problems.append(Problem(locator, "scan", reason))
            continue
        locators.append(locator)
        labels.append(label)
        places.append((reader.offsets[member], reader.sizes[member]))
    return ShardRows.of(shard, locators, labels, places, problems)


def _parts(path: str) -> tuple[str, str]:
    """A member's key and the ending of its name, in small letters."""
    folder, _, name = path.rpartition("/")
    key, _, ending = name.partition(".")
    return f"{folder}/{key}", ending.lower()


def _label(reader: TarReader, member: int, path: str) -> str:
    """The label in a member: its text, or what a JSON object names; empty if there is none."""
    if reader.sizes[member] > SHARD_LABEL_BYTES:
        return ""
    try:
        text = reader(member).decode("utf-8").strip()
        if not path.lower().endswith(".json"):
            return text
        facts = json.loads(text)
        names = (name for name in ("label", "class", "cls") if name in facts)
        return str(facts[next(names)])
    except (ImageError, ValueError, TypeError, StopIteration, RecursionError):
        return ""


def _split_of(shard: str) -> int:
    """The split that a shard's path names, as in train-0001.tar or val/0001.tar."""
    words = shard.lower().replace("/", "-").replace("_", "-").replace(".", "-").split("-")
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), UNSPLIT)


class _MemberReader:
    """Reads row i."""

    def __init__(self, store: ShardStore, table: ShardTable) -> None:
        self._store, self._shard_of, self._places = store, table.shard_of, table.places

    def __call__(self, row: int) -> bytes:
        """The encoded bytes of an image. Raises ImageError."""
        offset, size = self._places[row].tolist()
        check_size(size)
        try:
            data = self._store.read(int(self._shard_of[row]), offset, size)
        except OSError as error:
            raise ImageError(f"cannot be read: {error.strerror or error}") from error
        if len(data) < size:
            raise ImageError("the archive has been cut short since it was opened")
        return data
