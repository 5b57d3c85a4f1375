"""Where shards are written: a folder here or behind an fsspec URL, each file whole or not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onsight.data.shards.address import is_url, without_file_scheme
from onsight.data.shards.remote import Remote
from onsight.data.shards.retry import retried
from onsight.errors import DataError, OutputError, RemoteFailed
from onsight.files import disk_errors, user_path, write_atomically


@dataclass(frozen=True)
class Target:
    """A folder; remote is None on this machine."""

    name: str
    folder: Path
    remote: Remote | None

    @classmethod
    def open(cls, out: str) -> "Target":
        """Raises OutputError for a URL that cannot be opened."""
        out = without_file_scheme(out).rstrip("/")
        if not is_url(out):
            return cls(out, user_path(out), None)
        try:
            return cls(out, Path(), Remote.open(out))
        except DataError as error:
            raise OutputError(str(error)) from error

    def names(self) -> set[str]:
        """The names of the files that are there."""
        if self.remote is None:
            return {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        filesystem = self.remote.filesystem
        try:
            filesystem.invalidate_cache()
            found: list[Any] = self._asked(lambda: filesystem.ls(self.remote_root, detail=False))
        except FileNotFoundError:
            return set()
        return {str(path).rpartition("/")[2] for path in found}

    @property
    def remote_root(self) -> str:
        """The path in the remote filesystem."""
        return self.remote.root.rstrip("/") if self.remote else ""

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        if self.remote is None:
            with disk_errors(self.folder / name):
                return (self.folder / name).read_bytes()
        filesystem, path = self.remote.filesystem, f"{self.remote_root}/{name}"
        content: bytes = self._asked(lambda: filesystem.cat_file(path))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all: an object store shows it once it is complete."""
        if self.remote is None:
            write_atomically(self.folder / name, content)
            return
        filesystem, path = self.remote.filesystem, f"{self.remote_root}/{name}"
        self._asked(lambda: filesystem.pipe_file(path, content))

    def remove(self, name: str) -> None:
        """Remove a file that this program wrote."""
        if self.remote is None:
            (self.folder / name).unlink(missing_ok=True)
            return
        filesystem, path = self.remote.filesystem, f"{self.remote_root}/{name}"
        self._asked(lambda: filesystem.rm_file(path))

    def _asked(self, call: Any) -> Any:
        try:
            return retried(call, self.name)
        except (RemoteFailed, FileNotFoundError):
            raise
        except Exception as error:
            raise OutputError(
                f"{self.name} cannot be written: {type(error).__name__}: {error}"
            ) from error
