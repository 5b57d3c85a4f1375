"""Copies of shards on the local disk, up to a limit; what was used longest ago makes room.

Several processes share them: a copy is written under a temporary name, synced and renamed, under a
lock of its own, and whoever has it open goes on reading after it was removed.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from onsight.data.locks import locked
from onsight.errors import DiskError
from onsight.files import disk_errors
from onsight.words import data_size

_SHARE = 0.5  # of the free space on the disk, where no limit is given
_ENDING, _UNFINISHED = ".shard", ".tmp"


class Descriptor:
    """An open file that is closed when nobody refers to it any more."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes at an offset; safe for threads."""
        return os.pread(self.number, size, offset)


class ShardCache:
    """A folder of copies. limit_bytes: 0 for half of what the disk has free, besides them."""

    def __init__(self, folder: Path | None, limit_bytes: int = 0) -> None:
        self._folder = folder or Path(tempfile.mkdtemp(prefix="onsight-shards-"))
        if folder is None:  # nothing is to be kept
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        kept = sum(size for _, size, _ in self._entries())
        free = shutil.disk_usage(self._folder).free
        self.limit_bytes = limit_bytes or int(_SHARE * (free + kept))

    def find(self, key: str) -> Descriptor | None:
        """A copy, opened and marked as used; None if there is none."""
        path = self._folder / f"{key}{_ENDING}"
        try:
            found = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return None
        with suppress(OSError):
            os.utime(path)  # by which the one to remove is chosen
        return found

    def add(self, key: str, size: int, write: Callable[[BinaryIO], None]) -> Descriptor:
        """The copy under this key, written if no process has done so meanwhile.

        Raises DiskError, also for a copy larger than all there may be.
        """
        if size > self.limit_bytes:
            raise DiskError(
                f"a shard of {data_size(size)} does not fit into the {data_size(self.limit_bytes)} "
                f"for copies in {self._folder}; raise --shard-cache-gigabytes, or free some space"
            )
        with locked(self._lock(key)):
            found = self.find(key)
            if found:
                return found
            path = self._folder / f"{key}{_ENDING}"
            temporary = path.with_name(f"{key}.{os.getpid()}{_UNFINISHED}")
            try:
                with disk_errors(path, size), open(temporary, "w+b") as file:
                    self._make_room(key, file, size)
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                    os.replace(temporary, path)  # if a power cut undoes it, there is no copy
                    return Descriptor(os.dup(file.fileno()))
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def _lock(self, key: str) -> Path:
        return self._folder / "locks" / key

    def _make_room(self, key: str, file: BinaryIO, size: int) -> None:
        """Remove copies until this one fits, and claim its place by the size of its file."""
        with locked(self._lock("room")):
            self._remove_strays(key)
            entries = sorted(self._entries())
            total = sum(bytes_ for _, bytes_, _ in entries) + size
            for _, bytes_, path in entries:
                if total <= self.limit_bytes:
                    break
                if path.suffix == _ENDING:
                    path.unlink(missing_ok=True)
                    total -= bytes_
            file.truncate(size)

    def _remove_strays(self, key: str) -> None:
        """Remove what killed processes left unfinished: nobody holds its lock."""
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
        """(time of last use, bytes, path) of everything in the folder."""
        found = []
        with os.scandir(self._folder) as entries:  # whose facts cost a third of those of paths
            for entry in entries:
                if entry.name.endswith((_ENDING, _UNFINISHED)):
                    with suppress(FileNotFoundError):
                        facts = entry.stat()
                        found.append((facts.st_mtime_ns, facts.st_size, Path(entry.path)))
        return found
