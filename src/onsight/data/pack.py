"""The pack: all images, decoded once into a memory-mapped uint8 file.

A pack folder contains `pixels.bin` (n, H, W, C), `table.safetensors` (digests, locators, labels and
splits, with a checksum) and `pack.json` with a key, which depends on everything that determines the
content. It is built under a temporary name and renamed. A pack with another key is replaced.

n images, H height, W width, C channels.
"""

import errno
import hashlib
import json
import mmap
import os
import shutil
import tempfile
import uuid
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
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
from onsight.data.cache import locked
from onsight.data.fit import ImageFormat
from onsight.data.index import Index, Problem, TextColumn
from onsight.data.packing import NO_TIME, PackJob, decode_all
from onsight.data.pixels import Pixels
from onsight.data.sources.source import Source
from onsight.errors import DataError, DiskError
from onsight.files import disk_errors, sync_folder, write_json
from onsight.tensorfile import DamagedFile, read_tensors, write_tensors
from onsight.text import none_usable
from onsight.untrusted import read_json

VERSION = 3

_BLOCK = 16 * 2**20  # bytes per checksum
_MAX_CHECKED = 8 * 2**30  # bytes; larger packs are not checked, which would take too long


@dataclass(frozen=True)
class Pack:
    """Decoded images in the order of their digests.

    Attributes:
        pixels: In the order of decoding, (n, H, W, C).
        rows: The row of each image in pixels, (n,).
        sources: The row of each image in the source, (n,).
        digests: (n, 16).
        index: Locators, labels and splits.
        problems: Images that cannot be used, with reasons.
        format: The format of the images.
        was_cached: Whether the pack was in the cache.
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
        """Copy images by number: uint8 (m, H, W, C)."""
        taken = torch.from_numpy(self.pixels[self.rows[numbers]])
        release_pages(self.pixels)
        return taken


def release_pages(pixels: Pixels | None) -> None:
    """Take the pages of a mapped file out of the process; the system still caches the file."""
    mapped = getattr(pixels, "_mmap", None)  # of a numpy.memmap
    if mapped is not None and hasattr(mapped, "madvise"):  # not on Windows
        mapped.madvise(mmap.MADV_DONTNEED)


def open_pack(job: PackJob, cache_folder: Path | None) -> Pack:
    """Open the pack of a job, building it if none in the cache matches.

    Args:
        job: The images and their format.
        cache_folder: The cache. Without one, or if time has run out before all images were
            decoded, the pack is an unnamed temporary file.

    Raises:
        DataError: If no image can be used, or at the first that cannot be used if the job is
            strict.
        DiskError: If the pack cannot be written.
    """
    if cache_folder is None:
        return _build_unnamed(job)
    key = pack_key(job.source, job.target)
    folder = _pack_folder(job, cache_folder)
    try:
        pack = _read_or_build(folder, key, job)
    except DiskError as error:
        if not _is_read_only(error):
            raise
        cached = _read(folder, key, job)
        if cached is None:
            raise DiskError(f"{error}; set --cache-folder to another folder, or none") from error
        pack = cached
    if job.strict and pack.was_cached and pack.problems:
        raise DataError(f"{pack.problems[0].path}: {pack.problems[0].reason}")
    return pack


def is_packed(job: PackJob, cache_folder: Path | None) -> bool:
    """Return whether the pack of a job is in the cache. It is not checked for damage."""
    if cache_folder is None:
        return False
    try:
        facts = read_json(_pack_folder(job, cache_folder) / "pack.json")
        return bool(facts["key"] == pack_key(job.source, job.target))
    except (DataError, LookupError, TypeError):
        return False


def pack_key(source: Source, target: ImageFormat) -> str:
    """Return a digest of everything that determines the content of a pack."""
    facts: list[Any] = [VERSION, decode.VERSION, PIL.__version__, simplejpeg.__version__]
    facts += [source.kind, str(source.root), source.fingerprint, target.facts()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def block_checksums(content: NDArray[np.uint8], threads: int) -> NDArray[np.int64]:
    """Return the CRC-32 of each 16 MB of content (N,): int64 (ceil(N / 16 MB),)."""
    starts = range(0, len(content), _BLOCK)

    def compute(start: int) -> int:
        checksum = zlib.crc32(content[start : start + _BLOCK].data)
        release_pages(content)
        return checksum

    with ThreadPoolExecutor(threads) as pool:  # zlib releases the GIL
        return np.fromiter(pool.map(compute, starts), np.int64, len(starts))


def is_intact(content: NDArray[np.uint8], checksums: NDArray[np.int64], threads: int) -> bool:
    """Return whether content (N,) matches its checksums. More than 8 GB are not checked."""
    if len(content) > _MAX_CHECKED:
        return True
    return np.array_equal(block_checksums(content, threads), checksums)


@dataclass(frozen=True)
class _Table:
    """The fields of a Pack other than the pixels, as the result of building it."""

    rows: NDArray[np.int64]
    sources: NDArray[np.int64]
    digests: NDArray[np.uint8]
    index: Index
    problems: list[Problem]
    format: ImageFormat


def _pack_folder(job: PackJob, cache_folder: Path) -> Path:
    """Return the folder of a pack, which depends on DATA and the format alone."""
    facts = [job.source.kind, str(job.source.root), job.target.facts()]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]
    return cache_folder / "packs" / name


def _locked(folder: Path, wait: bool = True) -> AbstractContextManager[bool]:
    """Hold the lock of a pack's folder. Yields False if another process holds it."""
    return locked(folder.parents[1] / "locks" / folder.name, wait)


def _is_read_only(error: DiskError) -> bool:
    """Return whether a folder is on a disk mounted read-only, or somebody else's."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


def _read_or_build(folder: Path, key: str, job: PackJob) -> Pack:
    """Return the pack in a folder, built if there is none."""
    with _locked(folder):  # other runs wait and reopen the pack
        pack = _read(folder, key, job)
        if pack:
            return pack
        with disk_errors(folder, _min_bytes(job)):
            partial = _build_in_place(folder, key, job)
        built = partial or _read(folder, key, job)
        if built is None:
            raise DataError(f"{folder} was changed while it was being written; run again")
        return replace(built, was_cached=False)


def _min_bytes(job: PackJob) -> int:
    target = job.target
    return len(job.source.index) * target.height * target.width * max(1, target.channels)


def _build(file: BinaryIO, job: PackJob) -> _Table:
    """Decode all images of a source into an open file."""
    decoded = decode_all(file, job)
    if not decoded.source_rows:
        raise DataError(_describe_problems(job.source, decoded.problems))
    source_rows = np.array(decoded.source_rows, np.int64)
    digests = np.frombuffer(b"".join(decoded.digests), np.uint8).reshape(len(source_rows), -1)
    index = job.source.index.take(source_rows)
    halves = np.ascontiguousarray(digests).view(">u8")
    order = np.lexsort((index.labels, halves[:, 1], halves[:, 0]))
    return _Table(
        rows=order.astype(np.int64),
        sources=source_rows[order],
        digests=np.ascontiguousarray(digests[order]),
        index=index.take(order),
        problems=decoded.problems,
        format=replace(job.target, channels=decoded.channels),
    )


def _build_unnamed(job: PackJob) -> Pack:
    """Build a pack in an unlinked temporary file, which vanishes when the process ends."""
    with tempfile.TemporaryFile(prefix="onsight-") as file:
        with disk_errors(Path(tempfile.gettempdir()), _min_bytes(job)):
            table = _build(file, job)
            file.flush()
        pixels = _map_pixels(file, len(table.rows), table.format)
    return Pack(pixels=pixels, was_cached=False, **vars(table))


def _build_in_place(folder: Path, key: str, job: PackJob) -> Pack | None:
    """Build a pack under a temporary name and rename it, so that it is never incomplete.

    Returns:
        The pack if time has run out before all images were decoded; its file is already unlinked.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
    temporary.mkdir()
    try:
        with open(temporary / "pixels.bin", "w+b") as file:
            table = _build(file, job)
            file.flush()
            os.fsync(file.fileno())
            pixels = _map_pixels(file, len(table.rows), table.format)
        if any(problem.reason == NO_TIME for problem in table.problems):
            shutil.rmtree(temporary)
            return Pack(pixels=pixels, was_cached=False, **vars(table))
        _write_table(temporary, key, table, block_checksums(pixels.reshape(-1), job.threads))
        _swap(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return None


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
    facts = {
        "classes": list(index.classes),
        "problems": [list(problem) for problem in table.problems],
    }
    write_tensors(folder / "table.safetensors", tensors, facts)
    write_json(folder / "pack.json", {"key": key, "format": table.format.facts()})


def _read(folder: Path, key: str, job: PackJob) -> Pack | None:
    """Read a pack; return None if it is missing or damaged or has another key."""
    try:
        facts = read_json(folder / "pack.json")
        if facts["key"] != key:
            return None
        packed = replace(job.target, channels=facts["format"]["channels"])
        tensors, texts = read_tensors(folder / "table.safetensors")
        columns = {name: tensor.numpy() for name, tensor in tensors.items()}
        with open(folder / "pixels.bin", "rb") as file:
            pixels = _map_pixels(file, len(columns["rows"]), packed)
        if not is_intact(pixels.reshape(-1), columns["pixel_checksums"], job.threads):
            return None
        release_pages(pixels)
    except (DataError, OSError, ValueError, LookupError, TypeError, DamagedFile):
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
            tuple(texts["classes"]),
        ),
        problems=[Problem(*problem) for problem in texts["problems"]],
        format=packed,
        was_cached=True,
    )


def _map_pixels(file: BinaryIO, count: int, target: ImageFormat) -> Pixels:
    """Map the pixel file copy-on-write, because torch requires writable memory."""
    shape = (count, target.height, target.width, target.channels)
    if os.fstat(file.fileno()).st_size != int(np.prod(shape)):
        raise ValueError("the pixel file's size does not match its table")
    return np.memmap(file, np.uint8, "c", shape=shape)


def _swap(temporary: Path, folder: Path) -> None:
    """Rename a finished folder, replacing an old one."""
    sync_folder(temporary)
    old = temporary.with_suffix(".old")
    if folder.exists():
        os.replace(folder, old)
    os.replace(temporary, folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left of this pack, whose lock is held, and of other packs."""
    for kind in ("tmp", "old"):
        for leftover in folder.parent.glob(f".*.*.{kind}"):
            owner = folder.with_name(leftover.name.split(".")[1])
            with _locked(owner, wait=False) if owner != folder else nullcontext(True) as is_locked:
                if is_locked:  # no other process is building the pack
                    shutil.rmtree(leftover, ignore_errors=True)


def _describe_problems(source: Source, problems: list[Problem]) -> str:
    reasons = Counter(problem.reason for problem in problems).most_common(3)
    counted = "; ".join(f"{count:,} x {reason}" for reason, count in reasons)
    return f"{none_usable(len(source.index), 'image', f' in {source.root}')}: {counted}"
