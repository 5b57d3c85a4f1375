"""The pack: every image decoded once, into one memory-mapped uint8 file.

A pack folder holds `pixels.bin` (n, H, W, C), `table.safetensors` (digests, locators,
labels, splits; checksummed) and `pack.json` with a key made of everything that went in.
It is built under a temporary name and renamed; a pack with another key is replaced.
"""

import hashlib
import json
import math
import os
import shutil
import tempfile
import uuid
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL
import simplejpeg
import torch
from numpy.typing import NDArray

from onsight.data import decode
from onsight.data.block_checksums import block_checksums, is_intact
from onsight.data.fit import ImageFormat
from onsight.data.index import Index, Problem, TextColumn
from onsight.data.locks import locked
from onsight.data.packing import Job, decode_all
from onsight.data.pillow_pixels import Pixels
from onsight.data.sources.source import Source
from onsight.errors import DataError
from onsight.files import disk_errors, sync_folder, write_json
from onsight.tensorfile import DamagedFile, read_tensors, write_tensors

VERSION = 3


@dataclass(frozen=True)
class Pack:
    """Usable images in the order of their digests.

    pixels: uint8 (n, H, W, C) in the order of decoding; rows: int64 (n,) the row of image i
    in pixels; sources: int64 (n,) its row in the source; digests: uint8 (n, 16); index: the n
    images' locators, labels, splits.
    """

    pixels: Pixels
    rows: NDArray[np.int64]
    sources: NDArray[np.int64]
    digests: NDArray[np.uint8]
    index: Index
    problems: list[Problem]
    format: ImageFormat
    was_cached: bool

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        """A copy of these images: uint8 (m, H, W, C)."""
        return torch.from_numpy(self.pixels[self.rows[numbers]])


def open_pack(job: Job, cache_folder: Path | None) -> Pack:
    """Open the pack of a job, building it if none matches.

    Without a cache folder, or with a deadline, the pack is an unnamed temporary file that ends with
    the process.
    Raises DiskError; DataError if no image can be used or, if the job is strict, at the first
    that cannot.
    """
    if cache_folder is None or job.deadline < math.inf:  # what is kept is whole
        return _build_unnamed(job)
    key = pack_key(job.source, job.target)
    place = cache_folder / "packs" / _slot(job)
    with _locked(place):  # a second run waits, then reopens the pack
        pack = _read(place, key, job)
        if pack is None:
            with disk_errors(place, _least_bytes(job)):
                _build_in_place(place, key, job)
            built = _read(place, key, job)
            if built is None:
                raise DataError(f"{place} was changed while it was being written; run again")
            return replace(built, was_cached=False)
    if job.strict and pack.problems:
        raise DataError(f"{pack.problems[0].path}: {pack.problems[0].reason}")
    return pack


def _locked(place: Path, wait: bool = True) -> AbstractContextManager[bool]:
    """Hold the lock of a pack's folder; False if another process does."""
    return locked(place.parents[1] / "locks" / place.name, wait)


def is_packed(job: Job, cache_folder: Path | None) -> bool:
    """Whether the pack of a job is in the cache."""
    if cache_folder is None:
        return False
    try:
        facts = (cache_folder / "packs" / _slot(job) / "pack.json").read_text(encoding="utf-8")
        return bool(json.loads(facts)["key"] == pack_key(job.source, job.target))
    except (OSError, ValueError, LookupError, TypeError):
        return False


def pack_key(source: Source, target: ImageFormat) -> str:
    """The digest of everything that determines a pack's content."""
    facts: list[Any] = [VERSION, decode.VERSION, PIL.__version__, simplejpeg.__version__]
    facts += [source.kind, str(source.root), source.fingerprint, target.facts()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _slot(job: Job) -> str:
    """One folder for each DATA and format, so that a rebuilt pack replaces the old one."""
    facts = [job.source.kind, str(job.source.root), job.target.facts()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]


def _least_bytes(job: Job) -> int:
    target = job.target
    return len(job.source.index) * target.height * target.width * max(1, target.channels)


@dataclass(frozen=True)
class _Table:
    """What a build yields besides the pixels."""

    rows: NDArray[np.int64]
    sources: NDArray[np.int64]
    digests: NDArray[np.uint8]
    index: Index
    problems: list[Problem]
    format: ImageFormat


def _build(file: BinaryIO, job: Job) -> _Table:
    """Decode all of a source's images into an open file and make their table."""
    decoded = decode_all(file, job)
    if not decoded.source_rows:
        raise DataError(_nothing_usable(job.source, decoded.problems))
    taken = np.array(decoded.source_rows, np.int64)
    digests = np.frombuffer(b"".join(decoded.digests), np.uint8).reshape(len(taken), -1)
    index = job.source.index.take(taken)
    halves = np.ascontiguousarray(digests).view(">u8")
    order = np.lexsort((index.labels, halves[:, 1], halves[:, 0]))
    return _Table(
        rows=order.astype(np.int64),
        sources=taken[order],
        digests=np.ascontiguousarray(digests[order]),
        index=index.take(order),
        problems=decoded.problems,
        format=replace(job.target, channels=decoded.channels),
    )


def _build_unnamed(job: Job) -> Pack:
    """Build into an unlinked temporary file: it vanishes with the process, however that ends."""
    with tempfile.TemporaryFile(prefix="onsight-") as file:
        with disk_errors(Path(tempfile.gettempdir()), _least_bytes(job)):
            table = _build(file, job)
            file.flush()
        pixels = _map_pixels(file, len(table.rows), table.format)
    return Pack(pixels=pixels, was_cached=False, **vars(table))


def _build_in_place(place: Path, key: str, job: Job) -> None:
    """Build under a temporary name, then rename; nothing half-built is ever in place."""
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(place)
    temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}.tmp")
    temporary.mkdir()
    try:
        with open(temporary / "pixels.bin", "w+b") as file:
            table = _build(file, job)
            file.flush()
            os.fsync(file.fileno())
            pixels = _map_pixels(file, len(table.rows), table.format)
        _write_table(temporary, key, table, block_checksums(pixels.reshape(-1), job.threads))
        _swap(temporary, place)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_table(folder: Path, key: str, table: _Table, checksums: NDArray[np.int64]) -> None:
    index = table.index
    columns = {
        "rows": table.rows,
        "sources": table.sources,
        "digests": table.digests,
        "labels": index.labels,
        "splits": index.splits,
        "locators": index.locators.blob,
        "locator_offsets": index.locators.offsets,
        "pixel_checksums": checksums,
    }
    tensors = {name: torch.from_numpy(np.array(column)) for name, column in columns.items()}
    facts = {"classes": list(index.classes), "problems": [list(row) for row in table.problems]}
    write_tensors(folder / "table.safetensors", tensors, facts)
    write_json(folder / "pack.json", {"key": key, "format": table.format.facts()})


def _read(place: Path, key: str, job: Job) -> Pack | None:
    """The pack in a folder, or None if there is none, one with another key or a damaged one."""
    try:
        facts = json.loads((place / "pack.json").read_text(encoding="utf-8"))
        if facts["key"] != key:
            return None
        found = replace(job.target, channels=facts["format"]["channels"])
        tensors, more = read_tensors(place / "table.safetensors")
        columns = {name: tensor.numpy() for name, tensor in tensors.items()}
        with open(place / "pixels.bin", "rb") as file:
            pixels = _map_pixels(file, len(columns["rows"]), found)
        if not is_intact(pixels.reshape(-1), columns["pixel_checksums"], job.threads):
            return None
    except (OSError, ValueError, LookupError, TypeError, DamagedFile):
        return None
    return Pack(
        pixels=pixels,
        rows=columns["rows"],
        sources=columns["sources"],
        digests=columns["digests"],
        index=Index(
            TextColumn(columns["locators"], columns["locator_offsets"]),
            columns["labels"],
            columns["splits"],
            tuple(more["classes"]),
        ),
        problems=[Problem(*row) for row in more["problems"]],
        format=found,
        was_cached=True,
    )


def _map_pixels(file: BinaryIO, count: int, target: ImageFormat) -> Pixels:
    """Map the pixel file copy-on-write: torch wants writable memory, but nothing is written."""
    shape = (count, target.height, target.width, target.channels)
    if os.fstat(file.fileno()).st_size != int(np.prod(shape)):
        raise ValueError("the pixel file's size is not what its table says")
    return np.memmap(file, np.uint8, "c", shape=shape)


def _swap(temporary: Path, place: Path) -> None:
    """Rename a finished folder into place, moving an old one out of the way."""
    sync_folder(temporary)
    old = temporary.with_suffix(".old")
    if place.exists():
        os.replace(place, old)
    os.replace(temporary, place)
    sync_folder(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def _remove_abandoned(place: Path) -> None:
    """Remove what killed processes left behind of this pack, whose lock is held, and of others."""
    for kind in ("tmp", "old"):
        for folder in place.parent.glob(f".*.*.{kind}"):
            owner = place.with_name(folder.name.split(".")[1])
            with _locked(owner, wait=False) if owner != place else nullcontext(True) as is_mine:
                if is_mine:  # nobody is building it
                    shutil.rmtree(folder, ignore_errors=True)


def _nothing_usable(source: Source, problems: list[Problem]) -> str:
    reasons = Counter(problem.reason for problem in problems).most_common(3)
    listed = "; ".join(f"{count:,} x {reason}" for reason, count in reasons)
    return f"none of the {len(source.index):,} images in {source.root} can be used: {listed}"
