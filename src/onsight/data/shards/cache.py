"""Remote shards, copied whole to the local disk shortly before they are read.

`ShardCache` keeps the copies below a size limit and removes those used longest ago. Several
processes share them: a copy is written to a temporary name under a separate lock, synced and
renamed. A process that has a copy open can go on reading it after its removal.
"""

import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from onsight.data.cache import locked
from onsight.data.shards.remote import Remote, RemoteFile
from onsight.data.shards.store import Descriptor, OpenFiles, Shard
from onsight.errors import DataError, DiskError
from onsight.files import disk_errors
from onsight.text import data_size

_FREE_DISK_SHARE = 0.5  # fraction of the free disk space, without a given limit
_ENDING, _UNFINISHED = ".shard", ".tmp"
_BLOCK_BYTES = 8 << 20  # bytes per request, all lost if the connection breaks
_MAX_OPEN = 24  # open copies; each uses disk space even after its removal
_PARALLEL_COPIES = 4


class ShardCache:
    """A folder of copies, shared by all processes that use it."""

    def __init__(self, folder: Path | None, limit_bytes: int = 0) -> None:
        """Use a folder; None for a temporary one. limit_bytes: 0 for half of the free disk."""
        self._folder = folder or Path(tempfile.mkdtemp(prefix="onsight-shards-"))
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        used = sum(size for _, size, _ in self._entries())
        free = shutil.disk_usage(self._folder).free
        self.limit_bytes = limit_bytes or int(_FREE_DISK_SHARE * (free + used))

    def find(self, key: str) -> Descriptor | None:
        """Open a copy and mark it as used; None if there is none."""
        path = self._folder / f"{key}{_ENDING}"
        try:
            copy = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return None
        with suppress(OSError):
            os.utime(path)  # access time; copies are removed in the order of use
        return copy

    def add(self, key: str, size: int, write: Callable[[BinaryIO], None]) -> Descriptor:
        """Return the copy under this key; write it unless another process has done so.

        Raises DiskError, also for a copy that is larger than the limit for all of them.
        """
        if size > self.limit_bytes:
            raise DiskError(
                f"a shard of {data_size(size)} does not fit into the {data_size(self.limit_bytes)} "
                f"for copies in {self._folder}; raise --shard-cache-gigabytes, or free some space"
            )
        with locked(self._lock(key)):
            copy = self.find(key)
            if copy:
                return copy
            path = self._folder / f"{key}{_ENDING}"
            temporary = path.with_name(f"{key}.{os.getpid()}{_UNFINISHED}")
            try:
                with disk_errors(path, size), open(temporary, "w+b") as file:
                    self._make_room(key, file, size)
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                    # Without the lock, its holder could miss the copy under both names.
                    with locked(self._lock("room")):
                        os.replace(temporary, path)  # a power cut can undo this: no copy then
                    return Descriptor(os.dup(file.fileno()))
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def _lock(self, key: str) -> Path:
        return self._folder / "locks" / key

    def _make_room(self, key: str, file: BinaryIO, size: int) -> None:
        """Remove copies until the new one fits; its file, at full size, reserves the space."""
        with locked(self._lock("room")):
            self._remove_strays(key)
            entries = sorted(self._entries())
            total = sum(entry_size for _, entry_size, _ in entries) + size
            for _, entry_size, path in entries:
                if total <= self.limit_bytes:
                    break
                if path.suffix == _ENDING:
                    path.unlink(missing_ok=True)
                    total -= entry_size
            file.truncate(size)

    def _remove_strays(self, key: str) -> None:
        """Remove unfinished copies of killed processes: nobody holds their locks."""
        for path in self._folder.glob(f"*{_UNFINISHED}"):
            other = path.name.split(".")[0]
            if other == key:
                if path.name != f"{key}.{os.getpid()}{_UNFINISHED}":
                    path.unlink(missing_ok=True)
                continue
            with locked(self._lock(other), wait=False) as is_mine:
                if is_mine:
                    path.unlink(missing_ok=True)

    def _entries(self) -> list[tuple[int, int, Path]]:
        """Return (time of last use, bytes, path) of each file in the folder."""
        entries = []
        with os.scandir(self._folder) as scan:  # DirEntry.stat costs a third of Path.stat
            for entry in scan:
                if entry.name.endswith((_ENDING, _UNFINISHED)):
                    with suppress(FileNotFoundError):
                        facts = entry.stat()
                        entries.append((facts.st_mtime_ns, facts.st_size, Path(entry.path)))
        return entries


class RemoteShards:
    """A `ShardStore` of files behind a URL."""

    def __init__(self, remote: Remote, files: Sequence[RemoteFile], cache: ShardCache) -> None:
        self._remote, self._cache = remote, cache
        self._open_files = OpenFiles(_MAX_OPEN)
        self._pending: dict[int, Future[Descriptor]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_PARALLEL_COPIES, thread_name_prefix="shards")
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        identified = self._pool.map(self._identify, [file for file in files if not file.version])
        self._files = [file if file.version else next(identified) for file in files]
        self.shards = [Shard(it.name, it.size, it.version, it.listed) for it in self._files]
        self.digests: dict[int, str] = {}
        self._keys = [_copy_key(remote, file) for file in self._files]

    def open(self, index: int) -> Descriptor:
        """Open the copy of a shard; make the copy first if there is none."""
        copy = self._find_copy(index)
        if copy is None:
            copy = self._open_files.add(index, self._start_copy(index).result())
            with self._lock:
                self._pending.pop(index, None)
        return copy

    def read(self, index: int, offset: int, size: int) -> bytes:
        """Return some bytes of a shard; request only these bytes if it was not prefetched."""
        copy = self._find_copy(index)
        if copy is None and index not in self._pending:
            return self._remote.read(self._files[index], offset, offset + size)
        return (copy or self.open(index)).read(offset, size)

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start copying these shards, in this order."""
        for index in indices:
            if self._open_files.get(index) is None:
                self._start_copy(index)

    def _find_copy(self, index: int) -> Descriptor | None:
        """Return the copy of a shard if it is complete."""
        copy = self._open_files.get(index)
        if copy is None and index not in self._pending:
            copy = self._cache.find(self._keys[index])
            if copy:
                self._open_files.add(index, copy)
        return copy

    def _start_copy(self, index: int) -> Future[Descriptor]:
        with self._lock:
            if index not in self._pending:
                self._pending[index] = self._pool.submit(self._fetch, index)
            return self._pending[index]

    def _fetch(self, index: int) -> Descriptor:
        key, size = self._keys[index], self._files[index].size
        copy = self._cache.find(key)
        return copy or self._cache.add(key, size, lambda file: self._copy(index, file))

    def _identify(self, file: RemoteFile) -> RemoteFile:
        """Return a file with its digest as the version, where the server sends none."""
        with open(os.devnull, "wb") as nowhere:
            return replace(file, version=self._copy_blocks(file, nowhere))

    def _copy(self, index: int, to: BinaryIO) -> None:
        """Copy a shard, a second time if its digest is not the indexed one. Raises DataError."""
        known = self.digests.get(index)
        for _ in range(2):
            to.seek(0)
            digest = self._copy_blocks(self._files[index], to)
            if known in (None, digest):
                self.digests[index] = digest
                return
        raise DataError(
            f"{self._remote.url}: {self._files[index].name} is not what it was when DATA was "
            "indexed. Repeat the command: what has changed is read again"
        )

    def _copy_blocks(self, file: RemoteFile, to: BinaryIO) -> str:
        """Copy a file block by block, and return its SHA-256."""
        digest = hashlib.sha256()
        for start in range(0, file.size, _BLOCK_BYTES):
            block = self._remote.read(file, start, min(start + _BLOCK_BYTES, file.size))
            digest.update(block)
            to.write(block)
        return digest.hexdigest()


def _copy_key(remote: Remote, file: RemoteFile) -> str:
    """Return the name of a copy: a digest of the address, size and version."""
    facts = "\0".join((str(remote.filesystem.protocol), file.path, str(file.size), file.version))
    return hashlib.sha256(facts.encode()).hexdigest()[:32]
