"""Where the bytes of shards come from: files of this machine, or copies of remote ones."""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from onsight.data.file_state import stat_facts
from onsight.data.shards.shard_cache import Descriptor

ENDINGS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")  # of images in a tar
_OPEN = 128  # files of this machine


class Shard(NamedTuple):
    """A shard; the version changes when its content does."""

    name: str
    size: int
    version: str


class ShardStore(Protocol):
    """The shards of DATA, numbered in the order of their names.

    digests: SHA-256 of shards by number, as far as they are known and are to be checked.
    """

    digests: dict[int, str]

    @property
    def shards(self) -> Sequence[Shard]:
        """What there is."""

    def open(self, number: int) -> Descriptor:
        """A whole shard as a file of this machine. Raises OSError, RemoteFailed, DataError."""

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Some bytes of a shard; safe for threads. Raises as `open` does."""

    def expect(self, numbers: Sequence[int]) -> None:
        """Be told which shards are read next, to have them here by then."""


class OpenFiles:
    """The files that were used last, at most so many, open; safe for threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: OrderedDict[int, Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, number: int) -> Descriptor | None:
        """An open file by its number."""
        with self._lock:
            if number in self._files:
                self._files.move_to_end(number)
            return self._files.get(number)

    def keep(self, number: int, file: Descriptor) -> Descriptor:
        """Keep a file open in place of the one that was used longest ago."""
        with self._lock:
            self._files[number] = file
            while len(self._files) > self._most:
                self._files.popitem(last=False)
        return file


class LocalShards:
    """Shards in a folder."""

    def __init__(self, root: Path, paths: Sequence[Path]) -> None:
        self._paths, self._open = paths, OpenFiles(_OPEN)
        self.shards = [_local_shard(root, path) for path in paths]
        self.digests: dict[int, str] = {}

    def open(self, number: int) -> Descriptor:
        """The file itself."""
        found = self._open.get(number)
        if found is None:
            descriptor = os.open(self._paths[number], os.O_RDONLY | os.O_CLOEXEC)
            found = self._open.keep(number, Descriptor(descriptor))
        return found

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Some bytes of a file."""
        return self.open(number).read(offset, size)

    def expect(self, numbers: Sequence[int]) -> None:
        """They are here."""


def _local_shard(root: Path, path: Path) -> Shard:
    facts = stat_facts(path)
    name = path.name if path == root else str(path.relative_to(root))
    return Shard(name, path.stat().st_size, "-".join(str(one) for one in facts[2:]))
