"""Finding out what DATA is."""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from itertools import islice
from pathlib import Path

from onsight.data.sources.archive import archive_kind, read_archive
from onsight.data.sources.cifar import holds_cifar, read_cifar
from onsight.data.sources.folder import read_folder
from onsight.data.sources.idx import holds_idx, read_idx
from onsight.data.sources.manifest import read_manifest
from onsight.data.sources.named import NAMES, known_name, read_named
from onsight.data.sources.source import Source
from onsight.data.sources.tables import READERS
from onsight.errors import DataError, did_you_mean

DEMO = "demo"
_NEIGHBOURS = 10_000  # names looked at for a near miss

_FOLDER_FORMATS: dict[str, Callable[[Path], Source]] = {
    "folders": read_folder,
    "idx": read_idx,
    "cifar": read_cifar,
}


def find_source(data: str, data_format: str = "auto", cache_folder: Path | None = None) -> Source:
    """Open DATA: `demo`, a folder, an archive, a manifest or the name of a data set.

    data_format: auto, folders, manifest, idx, cifar, archive or torchvision; a given one forces
    that reader. cache_folder: where a compressed tar may be decompressed to, unlinked.
    Raises DataError for what cannot be found or used; DiskError.
    """
    if data == DEMO and data_format in ("auto", "archive"):
        return _demo(cache_folder)
    if data_format == "torchvision":
        return read_named(data)
    if not data:
        raise DataError("DATA is empty; give a folder, an archive, a manifest or a name")
    path = Path(data).expanduser()
    try:
        if path.exists():
            return _read(path, data_format, cache_folder)
    except OSError as error:
        raise DataError(f"{data} cannot be read: {error.strerror or error}") from error
    if data_format == "auto" and known_name(data):
        return read_named(data)
    raise _missing(data, path)


def _demo(cache_folder: Path | None) -> Source:
    archive = resources.files("onsight") / "demo" / "fashion-mnist-sample.zip"
    source = read_archive(Path(str(archive)), cache_folder)
    return replace(source, found=f"the demo, a sample of Fashion-MNIST: {source.found}")


def _read(path: Path, data_format: str, cache_folder: Path | None) -> Source:
    if data_format == "auto":
        data_format = _data_format_of(path)
    if data_format in _FOLDER_FORMATS:
        if not path.is_dir():
            raise DataError(
                f"{path} is no folder, so it cannot be read with --data-format {data_format}"
            )
        return _FOLDER_FORMATS[data_format](path)
    if not path.is_file():
        raise DataError(f"{path} is no file, so it cannot be read with --data-format {data_format}")
    return read_manifest(path) if data_format == "manifest" else read_archive(path, cache_folder)


def _data_format_of(path: Path) -> str:
    """The data_format of an existing path, by its content first. Raises DataError."""
    if path.is_dir():
        if holds_idx(path):
            return "idx"
        return "cifar" if holds_cifar(path) else "folders"
    if not path.is_file():
        raise DataError(f"{path} is neither a folder nor a regular file")
    if path.suffix.lower() in READERS:
        return "manifest"
    if archive_kind(path):
        return "archive"
    raise DataError(
        f"{path} is none of the files that hold a data set: a zip or tar of class folders, "
        f"or a manifest ({' '.join(READERS)})"
    )


def _missing(data: str, path: Path) -> DataError:
    """The error for a path that is not there, with names that come near."""
    try:
        with os.scandir(path.parent) as scan:
            names = [entry.name for entry in islice(scan, _NEIGHBOURS)]
    except OSError:
        names = []
    if os.sep not in data:
        names += [*NAMES, DEMO]
    return DataError(f"{data} does not exist.{did_you_mean(path.name, sorted(names))}")
