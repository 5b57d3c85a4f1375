"""Remote shards, copied whole to this machine shortly before they are read."""

import hashlib
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from onsight.data.shards.remote import Remote, RemoteFile
from onsight.data.shards.shard_cache import Descriptor, ShardCache
from onsight.data.shards.store import OpenFiles, Shard
from onsight.errors import DataError

_BLOCK_BYTES = 8 << 20  # asked for at once: all that a broken connection costs
_OPEN = 24  # copies: what is open takes its place on the disk even when it was removed
_AT_ONCE = 4  # shards that are copied at the same time


class RemoteShards:
    """Shards of a URL. digests: the SHA-256 of those read before."""

    def __init__(self, remote: Remote, files: Sequence[RemoteFile], cache: ShardCache) -> None:
        self._remote, self._files, self._cache = remote, files, cache
        self.shards = [Shard(file.name, file.size, file.version) for file in files]
        self.digests: dict[int, str] = {}
        self._keys = [_key(remote, file) for file in files]
        self._open = OpenFiles(_OPEN)
        self._coming: dict[int, Future[Descriptor]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="shards")
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def open(self, number: int) -> Descriptor:
        """The copy of a shard, made if there is none."""
        found = self._here(number)
        if found is None:
            found = self._open.keep(number, self._ask(number).result())
            with self._lock:
                self._coming.pop(number, None)
        return found

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Some bytes of a shard; of one that nobody expects, only these are asked for."""
        found = self._here(number)
        if found is None and number not in self._coming:
            return self._remote.read(self._files[number], offset, offset + size)
        return (found or self.open(number)).read(offset, size)

    def expect(self, numbers: Sequence[int]) -> None:
        """Begin to copy these shards, in this order."""
        for number in numbers:
            if self._open.get(number) is None:
                self._ask(number)

    def _here(self, number: int) -> Descriptor | None:
        """The copy of a shard if it is complete."""
        found = self._open.get(number)
        if found is None and number not in self._coming:
            found = self._cache.find(self._keys[number])
            if found:
                self._open.keep(number, found)
        return found

    def _ask(self, number: int) -> Future[Descriptor]:
        with self._lock:
            if number not in self._coming:
                self._coming[number] = self._pool.submit(self._fetched, number)
            return self._coming[number]

    def _fetched(self, number: int) -> Descriptor:
        key, size = self._keys[number], self._files[number].size
        found = self._cache.find(key)
        return found or self._cache.add(key, size, lambda file: self._copy(number, file))

    def _copy(self, number: int, to: BinaryIO) -> None:
        """Copy a shard block by block, again if it is not what was indexed. Raises DataError."""
        known = self.digests.get(number)
        for _ in range(2):
            to.seek(0)
            digest = self._copy_blocks(self._files[number], to)
            if known in (None, digest):
                self.digests[number] = digest
                return
        raise DataError(
            f"{self._remote.url}: {self._files[number].name} is not what it was when DATA was "
            "indexed. Repeat the command: what has changed is read again"
        )

    def _copy_blocks(self, file: RemoteFile, to: BinaryIO) -> str:
        digest = hashlib.sha256()
        for start in range(0, file.size, _BLOCK_BYTES):
            block = self._remote.read(file, start, min(start + _BLOCK_BYTES, file.size))
            digest.update(block)
            to.write(block)
        return digest.hexdigest()


def _key(remote: Remote, file: RemoteFile) -> str:
    """The name of a copy: of the address and what changes with the content."""
    facts = "\0".join((str(remote.filesystem.protocol), file.path, str(file.size), file.version))
    return hashlib.sha256(facts.encode()).hexdigest()[:32]
