"""Write DATA as WebDataset shards: the images' unchanged bytes, each with its class beside it."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from onsight.data.index import SPLIT_NAMES, Problem
from onsight.data.pixels import encode_png
from onsight.data.shards.remote import Remote, is_url, strip_file_scheme
from onsight.data.shards.retry import call_with_retries
from onsight.data.shards.shard_index import INDEX_NAME
from onsight.data.shards.store import IMAGE_ENDINGS
from onsight.errors import DataError, ImageError, OutputError, RemoteFailed
from onsight.files import disk_errors, user_path, write_atomically
from onsight.limits import SHARD_INDEX_BYTES
from onsight.text import data_size, plural

if TYPE_CHECKING:
    from onsight.data.sources.source import Source

PROGRESS_NAME = "unfinished.json"
_ENDING_BY_FORMAT = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}  # others: lower-case name
_MAX_END_BYTES = tarfile.RECORDSIZE  # largest size of the mark at a tar's end
_VERSION = 2

_Sample = list[tuple[str, bytes]]  # members of a tar: an image and its class


@dataclass(frozen=True)
class Target:
    """A local or remote folder, in which each file is written whole or not at all."""

    name: str  # the path or URL as the user gave it
    folder: Path  # unused if remote
    remote: Remote | None  # None for a local folder

    @classmethod
    def open(cls, out: str) -> "Target":
        """Open a path or URL. Raises OutputError for one that names nothing or cannot be opened."""
        out = strip_file_scheme(out)
        if not out.strip():
            raise OutputError("--out is empty; name a folder or a URL")
        if not is_url(out):
            return cls(out.rstrip("/") or "/", user_path(out), None)
        url = out.rstrip("/")
        if url.endswith(":"):
            raise OutputError(f"--out {out} names no place; write it as {url}//bucket/folder")
        try:
            return cls(url, Path(), Remote.open(url))
        except DataError as error:
            raise OutputError(str(error)) from error

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file in the folder, by name."""
        if self.remote is None:
            paths = self.folder.iterdir() if self.folder.is_dir() else ()
            return {path.name: path.stat().st_size for path in paths if path.is_file()}
        filesystem = self.remote.filesystem
        try:
            filesystem.invalidate_cache()
            entries: list[Any] = self._request(lambda: filesystem.ls(self.remote_root, detail=True))
        except FileNotFoundError:
            return {}
        return {str(facts["name"]).rpartition("/")[2]: facts.get("size") or 0 for facts in entries}

    def holds(self, shard: dict[str, Any], sizes: dict[str, int]) -> bool:
        """Return whether a shard of the index is there as listed, given the sizes of all files.

        The checksums of remote shards are not compared: all would have to be copied for that.
        """
        if sizes.get(shard["url"]) != shard["filesize"]:
            return False
        if self.remote:
            return True
        path = self.folder / shard["url"]
        with disk_errors(path), open(path, "rb") as file:
            digest = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False))
        return bool(digest.hexdigest() == shard["md5sum"])

    @property
    def remote_root(self) -> str:
        """The path in the remote filesystem."""
        return self.remote.root.rstrip("/") if self.remote else ""

    def read(self, name: str) -> bytes:
        """Return the bytes of an index."""
        if self.remote is None:
            with disk_errors(self.folder / name), open(self.folder / name, "rb") as file:
                return file.read(SHARD_INDEX_BYTES)
        path = f"{self.remote_root}/{name}"
        cat = partial(self.remote.filesystem.cat_file, path, start=0, end=SHARD_INDEX_BYTES)
        content: bytes = self._request(cat)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically; an object store shows it once it is complete."""
        if self.remote is None:
            write_atomically(self.folder / name, content)
            return
        filesystem, path = self.remote.filesystem, f"{self.remote_root}/{name}"
        self._request(lambda: filesystem.pipe_file(path, content))

    def remove(self, name: str) -> None:
        """Remove a file that this program wrote."""
        if self.remote is None:
            (self.folder / name).unlink(missing_ok=True)
            return
        filesystem, path = self.remote.filesystem, f"{self.remote_root}/{name}"
        self._request(lambda: filesystem.rm_file(path))

    def _request(self, call: Any) -> Any:
        try:
            return call_with_retries(call, self.name)
        except (RemoteFailed, FileNotFoundError):
            raise
        except Exception as error:
            raise OutputError(
                f"{self.name} cannot be written: {type(error).__name__}: {error}"
            ) from error


@dataclass
class WrittenShards:
    """The shards written so far."""

    shards: list[dict[str, Any]] = field(default_factory=list)  # entries of the index
    kept: int = 0  # number of shards that an earlier call wrote
    problems: list[Problem] = field(default_factory=list)  # skipped images
    rows: int = 0  # number of images read, written or not
    is_complete: bool = False  # whether an earlier call wrote all of them, and the index

    @property
    def images(self) -> int:
        """The number of images in the shards."""
        return sum(int(shard["nsamples"]) for shard in self.shards)


def write_shards(
    source: "Source",
    target: Target,
    most_bytes: int,
    progress: Callable[[int], None] = lambda done: None,
) -> WrittenShards:
    """Write every image of a source into shards of at most `most_bytes`, then their index.

    A shard is named after the split of its images, which are in random order. Shards written by an
    earlier call for the same source and size are kept if they are intact. Raises OutputError for a
    target that contains anything else; DiskError, RemoteFailed.
    """
    facts = {"onsight": _VERSION, "fingerprint": source.fingerprint, "most_bytes": most_bytes}
    sizes = target.sizes()
    written = _read_progress(target, facts, sizes)
    if not written.is_complete:  # claims the folder before the first shard is there
        _write_index(target, PROGRESS_NAME, facts, written)
    progress(written.rows)
    if written.is_complete:
        return written
    for shard in _fill_shards(source, written, most_bytes):
        name = f"{SPLIT_NAMES[shard.split] if shard.split else 'images'}-{shard.number:06d}.tar"
        if shard.samples:
            content = _build_tar(shard.samples)
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            entry = {"url": name, "filesize": len(content), "md5sum": digest}
            if target.holds(entry, sizes):
                written.kept += 1
            else:
                target.write(name, content)
            written.shards.append({**entry, "nsamples": len(shard.samples)})
        written.problems += shard.problems
        written.rows += shard.rows
        _write_index(target, PROGRESS_NAME, facts, written)
        progress(shard.rows)
    _write_index(target, INDEX_NAME, facts, written)
    target.remove(PROGRESS_NAME)
    return written


@dataclass
class _OpenShard:
    """A shard that is being filled."""

    number: int
    split: int
    rows: int = 0  # number of images read for this shard
    size: int = 0  # total bytes of its members
    samples: list[_Sample] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def _read_progress(target: Target, facts: dict[str, Any], sizes: dict[str, int]) -> WrittenShards:
    """Return the shards that an earlier call for the same source wrote, none if one is damaged.

    sizes: the bytes of the files that are there, by name. Raises OutputError.
    """
    is_ours = False
    for name in (INDEX_NAME, PROGRESS_NAME):
        if name not in sizes:
            continue
        try:
            content = json.loads(target.read(name))
            made_from = content.get("made_from", {})
            if {key: made_from.get(key) for key in facts} == facts:
                is_ours = True
                problems = [Problem(*problem) for problem in made_from["problems"]]
                shards, rows = content["shardlist"], int(made_from["rows"])
                if all(target.holds(shard, sizes) for shard in shards):
                    is_complete = name == INDEX_NAME
                    return WrittenShards(shards, len(shards), problems, rows, is_complete)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
    others = sorted(name for name in sizes if name.endswith((".tar", ".parquet", ".json")))
    if others and not is_ours:
        raise OutputError(
            f"{target.name} holds {others[0]}, which this command did not write from these "
            "images; choose another folder with --out"
        )
    return WrittenShards()


def _write_index(target: Target, name: str, facts: dict[str, Any], written: WrittenShards) -> None:
    """Write the index in the form of webdataset's `wids`, with facts that identify its source."""
    problems = [list(problem) for problem in written.problems]
    made_from = {**facts, "rows": written.rows, "problems": problems}
    index = {"wids_version": 1, "shardlist": written.shards, "made_from": made_from}
    content = (json.dumps(index, indent=1) + "\n").encode()
    if len(content) > SHARD_INDEX_BYTES:
        raise OutputError(
            f"{name} would have {data_size(len(content))}, for {plural(len(problems), 'image')} "
            f"that cannot be used and {plural(len(written.shards), 'shard')}. Remove such images, "
            "or raise --shard-megabytes"
        )
    target.write(name, content)


def _order_rows(source: "Source") -> NDArray[np.int64]:
    """Return all rows by split, shuffled within each unless they are best read in order."""
    count = len(source.index)
    rows = np.arange(count)
    if source.shards is None:
        rows = np.random.default_rng(0).permutation(count)
    return rows[np.argsort(source.index.splits[rows], kind="stable")]


def _fill_shards(source: "Source", written: WrittenShards, most_bytes: int) -> Iterator[_OpenShard]:
    """Yield the shards that are still to be written."""
    rows, splits = _order_rows(source)[written.rows :], source.index.splits
    if not len(rows):
        return
    label_ending = "cls" if all(map(_is_plain, source.index.classes)) else "json"
    shard = _OpenShard(len(written.shards), int(splits[rows[0]]))
    for row in rows.tolist():
        sample = _read_sample(source, row, label_ending)
        members = [] if isinstance(sample, Problem) else sample
        more = sum(_member_bytes(len(content)) for _, content in members)
        is_full = bool(shard.samples) and shard.size + more + _MAX_END_BYTES > most_bytes
        if shard.rows and (is_full or splits[row] != shard.split):
            yield shard
            shard = _OpenShard(shard.number + bool(shard.samples), int(splits[row]))
        shard.rows += 1
        if isinstance(sample, Problem):
            shard.problems.append(sample)
        else:
            shard.samples.append(sample)
            shard.size += more
    yield shard


def _is_plain(label: str) -> bool:
    """Return whether a label in a file of its own is read as it is, whatever reads it."""
    return label == label.strip().encode("utf-8", "ignore").decode("utf-8")


def _read_sample(source: "Source", row: int, label_ending: str) -> _Sample | Problem:
    """Return an image as members of a tar, or the reason it cannot be stored."""
    index = source.index
    locator = index.locators[row]
    try:
        content = source.read(row)
    except ImageError as error:
        return Problem(locator, "shard", str(error))
    if not isinstance(content, bytes):
        ending, content = "png", encode_png(content)
    else:
        ending = _find_ending(locator, content)
        if ending not in IMAGE_ENDINGS:
            return Problem(locator, "shard", "not an image of a kind that shards hold")
    label = index.classes[index.labels[row]]
    text = json.dumps({"label": label}) if label_ending == "json" else label
    return [(f"{row:09d}.{ending}", content), (f"{row:09d}.{label_ending}", text.encode())]


def _find_ending(locator: str, content: bytes) -> str:
    """Return the ending for an image's name: from the name itself, else from its content."""
    ending = locator.rpartition(".")[2].lower()
    if ending in IMAGE_ENDINGS:
        return ending
    try:
        with Image.open(io.BytesIO(content)) as image:
            kind = image.format or ""
    except (OSError, ValueError, Image.DecompressionBombError):
        return ""
    return _ENDING_BY_FORMAT.get(kind, kind.lower())


def _member_bytes(size: int) -> int:
    """Return the bytes of a tar member: its header and its content, padded to blocks."""
    return tarfile.BLOCKSIZE * (1 + -(-size // tarfile.BLOCKSIZE))


def _build_tar(samples: list[_Sample]) -> bytes:
    """Return a tar that depends only on the samples: without times and owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in chain.from_iterable(samples):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
