"""Writing DATA as WebDataset shards: the images' own bytes, each with its class beside it."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from onsight.data.index import SPLIT_NAMES, Problem
from onsight.data.shards.remote import INDEX_NAME
from onsight.data.shards.store import ENDINGS
from onsight.data.shards.target import Target
from onsight.errors import ImageError, OutputError

if TYPE_CHECKING:
    from onsight.data.sources.source import Source

PROGRESS_NAME = "unfinished.json"
_BY_FORMAT = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}  # others are named as their format
_END_BYTES = tarfile.RECORDSIZE  # of the mark at a tar's end, at most
_VERSION = 1


_Sample = tuple[str, bytes, bytes]  # name, image, class


@dataclass
class _Shard:
    """A shard being filled; rows: how many were looked at for it; size: of its members."""

    number: int
    split: int
    rows: int = 0
    size: int = 0
    samples: list[_Sample] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass
class Written:
    """Shards as the index lists them, of which some were there before, and what was left out."""

    shards: list[dict[str, Any]] = field(default_factory=list)
    kept: int = 0
    problems: list[Problem] = field(default_factory=list)
    rows: int = 0

    @property
    def images(self) -> int:
        """How many images the shards hold."""
        return sum(int(shard["nsamples"]) for shard in self.shards)


def write_shards(
    source: "Source",
    target: Target,
    most_bytes: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Written:
    """Write every image of a source into shards of at most so many bytes, then their index.

    Images of a split are in shards of its name, in random order. What a killed call has written
    is kept by the next one for the same source and size. Raises OutputError for a target that
    holds anything else; DiskError, RemoteFailed.
    """
    facts = {"onsight": _VERSION, "fingerprint": source.fingerprint, "most_bytes": most_bytes}
    written = _begun(target, facts)
    progress(written.rows)
    if written.rows == len(source.index):
        return written
    for shard in _shards(source, written, most_bytes):
        name = f"{SPLIT_NAMES[shard.split] if shard.split else 'images'}-{shard.number:06d}.tar"
        if shard.samples:
            content = _tar(shard.samples)
            target.write(name, content)
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            facts_of = {"url": name, "filesize": len(content), "md5sum": digest}
            written.shards.append({**facts_of, "nsamples": len(shard.samples)})
        written.problems += shard.problems
        written.rows += shard.rows
        _note(target, PROGRESS_NAME, facts, written)
        progress(shard.rows)
    _note(target, INDEX_NAME, facts, written)
    target.remove(PROGRESS_NAME)
    return written


def _begun(target: Target, facts: dict[str, Any]) -> Written:
    """What a former call for the same source has written. Raises OutputError."""
    names = target.names()
    for name in (INDEX_NAME, PROGRESS_NAME):
        if name not in names:
            continue
        try:
            found = json.loads(target.read(name))
            made_from = found.get("made_from", {})
            if {one: made_from.get(one) for one in facts} == facts:
                problems = [Problem(*one) for one in made_from["problems"]]
                shards = found["shardlist"]
                return Written(shards, len(shards), problems, made_from["rows"])
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
    others = sorted(name for name in names if name.endswith((".tar", ".parquet", ".json")))
    if others:
        raise OutputError(
            f"{target.name} holds {others[0]}, which this command with these images has not "
            "written; choose another folder with --out"
        )
    return Written()


def _note(target: Target, name: str, facts: dict[str, Any], written: Written) -> None:
    """Write the index, in the form of webdataset's `wids`, with what it was made from."""
    problems = [list(problem) for problem in written.problems]
    made_from = {**facts, "rows": written.rows, "problems": problems}
    index = {"wids_version": 1, "shardlist": written.shards, "made_from": made_from}
    target.write(name, (json.dumps(index, indent=1) + "\n").encode())


def _order(source: "Source") -> NDArray[np.int64]:
    """All rows by split, mixed at random within each unless they are best read in order."""
    count = len(source.index)
    mixed = np.arange(count)
    if source.shards is None:
        mixed = np.random.default_rng(0).permutation(count)
    return mixed[np.argsort(source.index.splits[mixed], kind="stable")]


def _shards(source: "Source", written: Written, most_bytes: int) -> Iterator[_Shard]:
    """The shards that are still to be written."""
    order, splits = _order(source)[written.rows :], source.index.splits
    shard = _Shard(len(written.shards), int(splits[order[0]]))
    for row in order.tolist():
        sample = _sample(source, row)
        more = 0 if isinstance(sample, Problem) else sum(_room(len(one)) for one in sample[1:])
        is_full = bool(shard.samples) and shard.size + more + _END_BYTES > most_bytes
        if shard.rows and (is_full or splits[row] != shard.split):
            yield shard
            shard = _Shard(shard.number + bool(shard.samples), int(splits[row]))
        shard.rows += 1
        if isinstance(sample, Problem):
            shard.problems.append(sample)
        else:
            shard.samples.append(sample)
            shard.size += more
    yield shard


def _sample(source: "Source", row: int) -> _Sample | Problem:
    """An image as members of a tar, or why it cannot be one."""
    index = source.index
    locator = index.locators[row]
    try:
        content = source.read(row)
    except ImageError as error:
        return Problem(locator, "shard", str(error))
    ending = "png"
    if not isinstance(content, bytes):  # plain pixels, which PNG keeps as they are
        buffer = io.BytesIO()
        Image.fromarray(content.squeeze(2) if content.shape[2] == 1 else content).save(
            buffer, "PNG"
        )
        content = buffer.getvalue()
    else:
        ending = _ending(locator, content)
        if ending not in ENDINGS:
            return Problem(locator, "shard", "not an image of a kind that shards hold")
    label = index.classes[index.labels[row]]
    return f"{row:09d}.{ending}", content, label.encode("utf-8", "surrogateescape")


def _ending(locator: str, content: bytes) -> str:
    """The ending of an image's name, by its name or else by its content."""
    named = locator.rpartition(".")[2].lower()
    if named in ENDINGS:
        return named
    try:
        with Image.open(io.BytesIO(content)) as image:
            kind = image.format or ""
    except (OSError, ValueError, Image.DecompressionBombError):
        return ""
    return _BY_FORMAT.get(kind, kind.lower())


def _room(size: int) -> int:
    """Bytes of a member in a tar: its header and its content, filled up to blocks."""
    return tarfile.BLOCKSIZE * (1 + -(-size // tarfile.BLOCKSIZE))


def _tar(samples: list[_Sample]) -> bytes:
    """The same bytes for the same samples: no times and no owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content, label in samples:
            for member, data in ((name, content), (f"{name.partition('.')[0]}.cls", label)):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
