"""A second place for a run's checkpoints: another folder or an object store, through fsspec."""

from pathlib import Path
from typing import Any

from onsight.errors import ConfigError, OutputError
from onsight.files import is_unfinished, move_into_place, private_name
from onsight.training.run_folder.folder import CONFIG, RunFolder

# An object appears when it is whole. Elsewhere a file shows while it is written: it gets a name of
# its own first and is then renamed.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci"}


class Mirror:
    """Copies files of a run folder to the same places under a folder or URL, and back."""

    def __init__(self, url: str, folder: RunFolder) -> None:
        self.url = url
        self.root = folder.run or folder.path
        self.files, self.place = _open(url)

    def keep(self, path: Path) -> None:
        """Copy a file of the run, and what the run was asked for, which makes it whole."""
        for file in (path, self.root / CONFIG):
            if file.exists():
                self._put(file)

    def _put(self, file: Path) -> None:
        there = f"{self.place}/{file.relative_to(self.root).as_posix()}"
        parent = there.rpartition("/")[0]
        self.files.makedirs(parent, exist_ok=True)
        if _is_object_store(self.files):
            self.files.put_file(str(file), there)
            return
        self.files.invalidate_cache()
        for left in self.files.ls(parent, detail=False):  # by a process that was killed
            if is_unfinished(left.rpartition("/")[2]):
                self.files.rm_file(left)
        beside = f"{parent}/{private_name()}"
        self.files.put_file(str(file), beside)
        self.files.mv(beside, there)


def restore(url: str, run: Path) -> bool:
    """Bring a run's checkpoints back from where they were copied to; whether there are any."""
    files, place = _open(url)
    if not files.exists(f"{place}/{CONFIG}"):
        return False
    found = [path for path in files.find(place) if not path.rpartition("/")[2].startswith(".")]
    found.sort(key=lambda path: path.endswith(CONFIG))  # last: it says that the others are there
    for path in found:
        target = run / path.removeprefix(place).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(private_name())
        files.get_file(path, str(beside))
        with open(beside, "rb") as file:
            move_into_place(file, beside, target)
    return True


def refuse_taken(url: str) -> None:
    """Raise OutputError if the checkpoints of another run are there."""
    files, place = _open(url)
    if files.exists(f"{place}/{CONFIG}") or files.find(f"{place}/checkpoints"):
        raise OutputError(
            f"{url} holds the checkpoints of a run: choose another place, or continue that run "
            "with --resume"
        )


def _open(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it. Raises ConfigError."""
    import fsspec  # only here: runs without a second place need none of it

    try:
        files, place = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"--checkpoints {url}: {error}") from error
    return files, str(place).rstrip("/")


def _is_object_store(files: Any) -> bool:
    names = files.protocol if isinstance(files.protocol, (tuple, list)) else (files.protocol,)
    return not _OBJECT_STORES.isdisjoint(names)
