"""WebDataset shards, local or remote: tar files of images with their labels beside them.

Source: https://github.com/webdataset/webdataset (members of one sample share their name up to the
first dot: 000.jpg, 000.cls).
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onsight.data.index import Problem
from onsight.data.shards.shard_index import INDEX_NAME, read_index
from onsight.data.shards.store import IMAGE_ENDINGS, LocalShards, Shard, ShardStore
from onsight.data.shards.table import ShardImage, ShardRows, find_table_file, read_shard_table
from onsight.data.sources.archive_members import BrokenTar, TarReader, open_tar, read_first_names
from onsight.data.sources.read_file import check_size
from onsight.data.sources.source import (
    NO_COPIES,
    CopySpace,
    ShardLayout,
    Source,
    build_table_source,
    find_split_word,
)
from onsight.data.sources.tables import parse_cell
from onsight.errors import DataError, ImageError
from onsight.limits import SHARD_LABEL_BYTES
from onsight.untrusted import open_regular

LABEL_ENDINGS = ("cls", "txt", "json")
_SEPARATORS = re.compile(r"[/_.-]")  # of words: the digits of train0001.tar are part of one
_SAMPLED_MEMBERS = 1000  # members of the first shard, read to recognise the format


class _Name(NamedTuple):
    """The parts of a member's name, with its folder."""

    key: str  # up to the first dot, as all members of a sample have it
    stem: str  # up to the last dot
    ending: str  # what follows the last dot, in lower case


def contains_shards(folder: Path) -> bool:
    """Return whether the first tar file of a folder contains images with labels beside them."""
    for path in _list_tars(folder)[:1]:
        try:
            with open(open_regular(path), "rb") as file:
                names = read_first_names(file, _SAMPLED_MEMBERS)
        except (OSError, BrokenTar):
            return False
        endings = {_split_name(name).ending for name in names}
        return bool(endings & set(IMAGE_ENDINGS)) and bool(endings & set(LABEL_ENDINGS))
    return False


def read_shards(folder: Path, cache_folder: Path | None = None) -> Source:
    """Return the samples of all shards in a folder.

    A shard that is broken, or not what the index beside it lists, becomes a problem, as does a
    sample without a label. The split is a word of a shard's path below the folder. cache_folder:
    the folder for what was found. Raises DataError if there is no usable sample, or a shard is
    missing.
    """
    root = Path(os.path.realpath(folder))
    index = read_index(root / INDEX_NAME)
    listed = [name for name in index if name.endswith(".tar")]
    missing = next((name for name in listed if not (root / name).is_file()), None)
    if missing:
        raise DataError(
            f"{root / INDEX_NAME} lists {missing}, which is missing. Write the shards again, or "
            f"remove {INDEX_NAME} to use the others unchecked"
        )
    paths = sorted({*_list_tars(root), *(root / name for name in listed)})
    return open_web_dataset(root, LocalShards(root, paths, index), cache_folder)


def open_web_dataset(
    root: Path, store: ShardStore, cache_folder: Path | None, copies: CopySpace = NO_COPIES
) -> Source:
    """Return the samples of a store's shards. Raises as `read_shards` does."""
    file = find_table_file(cache_folder, "webdataset", str(root))
    table = read_shard_table(store, lambda index: _read_rows(store, index), file)
    shard_of_row, positions = table.shard_of_row, table.positions
    files = np.arange(len(table.shards), dtype=np.int32)
    layout = ShardLayout(shard_of_row, files, store.prefetch, copies)

    def read(row: int) -> bytes:
        """Return the encoded bytes of an image. Raises ImageError."""
        offset, size = positions[row].tolist()
        check_size(size)
        try:
            data = store.read(int(shard_of_row[row]), offset, size)
        except OSError as error:
            raise ImageError(f"cannot be read: {error.strerror or error}") from error
        if len(data) < size:
            raise ImageError("the archive was truncated after it was opened")
        return data

    find_split = partial(find_split_word, separators=_SEPARATORS)
    what = "WebDataset shards"
    return build_table_source("webdataset", what, find_split, root, table, read, layout)


def _list_tars(folder: Path) -> list[Path]:
    """Return the tar files of a folder and of the folders in it, by name."""
    return sorted([*folder.glob("*.tar"), *folder.glob("*/*.tar")])


def _read_rows(store: ShardStore, index: int) -> ShardRows:
    """Return the rows of a shard; a broken shard has only a problem."""
    shard = store.shards[index]
    try:
        opened = store.open(index)
        with open(opened.number, "rb", closefd=False) as file:
            members, reader = open_tar(file)
    except (OSError, BrokenTar) as error:
        return ShardRows.broken(shard, error)
    keys = (_split_name(path).key for path in members.paths if "." in path)
    samples, listed = sum(1 for _ in groupby(keys)), shard.listed.samples
    # An index also counts members that are refused or hidden here.
    if listed is not None and samples != listed and not (members.problems or members.hidden):
        reason = f"it has {samples:,} samples, but {INDEX_NAME} lists {listed:,}"
        return ShardRows.broken(shard, reason)
    problems = [
        Problem(f"{shard.name}/{path}", stage, reason) for path, stage, reason in members.problems
    ]
    rows = _match_labels(shard, members.paths, reader, problems)
    del opened  # keeps the reader's descriptor open until here
    return rows


def _match_labels(
    shard: Shard, paths: Sequence[str], reader: TarReader, problems: list[Problem]
) -> ShardRows:
    """Return the images among a shard's members, each with the label beside it.

    A member of an unknown kind counts as an image, unless it belongs to one: decoding it tells
    what is wrong. Labels without an image become problems.
    """
    names = [_split_name(path) for path in paths]
    label_members: dict[str, int] = {}
    images: list[int] = []
    others: list[int] = []
    for member, name in enumerate(names):
        if name.ending in LABEL_ENDINGS:
            label_members.setdefault(name.stem, member)
        else:
            (images if name.ending in IMAGE_ENDINGS else others).append(member)
    pairs = _pair(names, images, label_members)
    pairs |= _pair(names, _without_image(names, others, pairs), label_members)
    found: list[ShardImage] = []
    for member, beside in sorted(pairs.items()):
        locator = f"{shard.name}/{paths[member]}"
        label = "" if beside is None else _read_label(reader, beside, paths[beside])
        if label:
            found.append((locator, label, (reader.offsets[member], reader.sizes[member])))
        else:
            reason = f"no label beside it ({', '.join(LABEL_ENDINGS)})"
            problems.append(Problem(locator, "scan", reason))
    for member in _without_image(names, label_members.values(), pairs):
        reason = f"no image beside it ({', '.join(IMAGE_ENDINGS)})"
        problems.append(Problem(f"{shard.name}/{paths[member]}", "scan", reason))
    return ShardRows.of(shard, found, problems)


def _pair(
    names: Sequence[_Name], images: Sequence[int], label_members: Mapping[str, int]
) -> dict[int, int | None]:
    """Return the label of each image, both as members: one of its name, else its sample's.

    Dates and versions have dots, too. A sample's label is that of its only image, not of masks.
    """
    counts = Counter(names[image].key for image in images)
    pairs = {}
    for image in images:
        key, stem, _ = names[image]
        shared = label_members.get(key) if counts[key] == 1 else None
        pairs[image] = label_members.get(stem, shared)
    return pairs


def _without_image(
    names: Sequence[_Name], members: Iterable[int], pairs: Mapping[int, int | None]
) -> list[int]:
    """Return the members that belong to none of the images."""
    stems = {names[image].stem for image in pairs}
    stems |= {names[label].stem for label in pairs.values() if label is not None}
    named = ((member, names[member]) for member in members)
    return [member for member, name in named if not (name.stem in stems or name.key in stems)]


def _split_name(path: str) -> _Name:
    start = path.rfind("/") + 1
    first, last = path.find(".", start), path.rfind(".", start)
    if first < 0:
        return _Name(path, path, "")
    return _Name(path[:first], path[:last], path[last + 1 :].lower())


def _read_label(reader: TarReader, member: int, path: str) -> str:
    """Return a member's text, or the label in its JSON object; empty if there is none."""
    if reader.sizes[member] > SHARD_LABEL_BYTES:
        return ""
    try:
        text = reader(member).decode("utf-8").strip()
        if not path.lower().endswith(".json"):
            return text
        facts = json.loads(text)
        label = parse_cell(facts[next(key for key in ("label", "class", "cls") if key in facts)])
        text = str(label) if isinstance(label, str | int | float) else ""  # with its spaces
        text.encode("utf-8", "surrogateescape")  # fails for what no file could be named
        return text
    except (ImageError, ValueError, TypeError, StopIteration, RecursionError):
        return ""
