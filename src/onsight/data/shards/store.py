"""`ShardStore`: read access to shards, which are local files or local copies of remote ones."""

import io
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from onsight.data.cache import file_state
from onsight.data.shards.shard_index import ListedShard
from onsight.untrusted import open_regular

IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")  # image names in a tar
_MAX_OPEN = 128  # open local files


class Shard(NamedTuple):
    """A file of many images."""

    name: str  # path relative to the dataset's root
    size: int  # bytes
    version: str  # text that changes with the content
    listed: ListedShard = ListedShard()  # what it should be, from the index beside it


class Descriptor:
    """An open file that is closed once nothing refers to it any more."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes at an offset; safe for threads."""
        return os.pread(self.number, size, offset)


class ShardStore(Protocol):
    """The shards of a dataset, numbered in the order of their names."""

    digests: dict[int, str]  # SHA-256 by shard index, where known, to check copies

    @property
    def shards(self) -> Sequence[Shard]:
        """All shards."""

    def open(self, index: int) -> Descriptor:
        """Open a whole shard as a local file. Raises OSError, RemoteFailed, DataError."""

    def read(self, index: int, offset: int, size: int) -> bytes:
        """Return some bytes of a shard; safe for threads. Raises as `open` does."""

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start copying these shards, the next ones to be read."""


class OpenFiles:
    """The most recently used files, kept open; safe for threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._files: OrderedDict[int, Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, index: int) -> Descriptor | None:
        """Return an open file by its index, or None."""
        with self._lock:
            if index in self._files:
                self._files.move_to_end(index)
            return self._files.get(index)

    def add(self, index: int, file: Descriptor) -> Descriptor:
        """Keep a file open, and drop the least recently used file if there are too many."""
        with self._lock:
            self._files[index] = file
            while len(self._files) > self._limit:
                self._files.popitem(last=False)
        return file


class LocalShards:
    """A `ShardStore` of files in a folder."""

    def __init__(
        self, root: Path, paths: Sequence[Path], index: Mapping[str, ListedShard] | None = None
    ) -> None:
        """Open files below a folder. index: what an index lists, by path below the folder."""
        self._paths, self._open_files = paths, OpenFiles(_MAX_OPEN)
        self.shards = [_describe_file(root, path, index or {}) for path in paths]
        self.digests: dict[int, str] = {}

    def open(self, index: int) -> Descriptor:
        """Open the file itself."""
        file = self._open_files.get(index)
        if file is None:
            file = self._open_files.add(index, Descriptor(open_regular(self._paths[index])))
        return file

    def read(self, index: int, offset: int, size: int) -> bytes:
        """Return some bytes of a file."""
        return self.open(index).read(offset, size)

    def prefetch(self, indices: Sequence[int]) -> None:
        """Do nothing: the files are local."""


def _describe_file(root: Path, path: Path, index: Mapping[str, ListedShard]) -> Shard:
    _, size, *facts = file_state(path)
    name = path.name if path == root else str(path.relative_to(root))
    return Shard(name, size, "-".join(map(str, facts)), index.get(name, ListedShard()))


class ShardFile(io.RawIOBase):
    """A shard as a file object, for pyarrow; each has its own position."""

    def __init__(self, store: ShardStore, index: int) -> None:
        super().__init__()
        self._store, self._index, self._position = store, index, 0
        self._size = store.shards[index].size

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return bytes from the position on, by default all bytes."""
        is_rest = size is None or size < 0
        end = self._size if is_rest else min(self._size, self._position + size)
        content = self._store.read(self._index, self._position, max(0, end - self._position))
        self._position += len(content)
        return content
