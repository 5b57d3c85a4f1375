"""A shard as a file object, for libraries that want one."""

import io
import os

from onsight.data.shards.store import ShardStore


class StoreFile(io.RawIOBase):
    """Reads a shard through its store; each has a position of its own."""

    def __init__(self, store: ShardStore, number: int) -> None:
        super().__init__()
        self._store, self._number, self._place = store, number, 0
        self._size = store.shards[number].size

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        """The position."""
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Bytes from the position on, all of them by default."""
        end = self._size if size is None or size < 0 else min(self._size, self._place + size)
        content = self._store.read(self._number, self._place, max(0, end - self._place))
        self._place += len(content)
        return content
