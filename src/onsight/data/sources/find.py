"""Finding out what DATA is."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from onsight.data.shards.address import is_url, without_file_scheme
from onsight.data.sources.annotations.cvat import is_xml, read_cvat
from onsight.data.sources.annotations.label_studio import is_json, read_label_studio
from onsight.data.sources.annotations.read_boxes import read_boxes
from onsight.data.sources.annotations.roboflow import holds_roboflow, read_roboflow
from onsight.data.sources.archive import archive_kind, read_archive
from onsight.data.sources.cifar import holds_cifar, read_cifar
from onsight.data.sources.class_names import refuse_alike_classes
from onsight.data.sources.folder import read_folder
from onsight.data.sources.hugging_face import (
    holds_hugging_face,
    is_hugging_face,
    read_hugging_face,
)
from onsight.data.sources.idx import holds_idx, read_idx
from onsight.data.sources.labelled_names import read_labelled_names
from onsight.data.sources.manifest import is_manifest, read_manifest
from onsight.data.sources.manifest_tables import READERS
from onsight.data.sources.named import NAMES, known_name, read_named
from onsight.data.sources.reading import AS_FOUND, Reading
from onsight.data.sources.remote import read_remote
from onsight.data.sources.source import Source
from onsight.data.sources.web_dataset import holds_shards, read_shards
from onsight.errors import ConfigError, DataError, did_you_mean
from onsight.files import user_path

if TYPE_CHECKING:
    from onsight.data.sources.memory import InMemory

DEMO = "demo"
_WITH_COLUMNS = ("manifest", "huggingface", "labelstudio")  # kinds of source that --label is for
_NEIGHBOURS = 10_000  # names compared with one that does not exist


class _Format(NamedTuple):
    """How a path of a data format is recognised, among folders, files or both (None), and read."""

    is_folder: bool | None
    recognise: Callable[[Path], object]
    read: Callable[[Path], Source]


def _formats(label: str, cache_folder: Path | None) -> dict[str, _Format]:
    """The data formats by their names in the config, in the order in which they are tried."""
    read_cached_archive = partial(read_archive, cache_folder=cache_folder)
    return {
        "idx": _Format(True, holds_idx, read_idx),
        "cifar": _Format(True, holds_cifar, read_cifar),
        "huggingface": _Format(
            None,
            _holds_images,
            partial(read_hugging_face, label=label, cache_folder=cache_folder),
        ),
        "webdataset": _Format(True, holds_shards, partial(read_shards, cache_folder=cache_folder)),
        "roboflow": _Format(True, holds_roboflow, read_roboflow),
        "folders": _Format(True, Path.is_dir, read_folder),
        "manifest": _Format(False, is_manifest, partial(read_manifest, label=label)),
        "labelstudio": _Format(False, is_json, partial(read_label_studio, label=label)),
        "cvat": _Format(False, is_xml, read_cvat),
        "archive": _Format(False, archive_kind, read_cached_archive),
    }


def _holds_images(path: Path) -> bool:
    """Whether a path is a Parquet file of images, or a folder of these."""
    return holds_hugging_face(path) if path.is_dir() else is_hugging_face(path)


def take_data(data: "str | Path | InMemory") -> str | Source:
    """DATA by its name, or gathered if it is in memory. Raises DataError."""
    if isinstance(data, (str, Path)):
        return str(data)
    from onsight.data.sources.memory import memory_source  # loads torch, which paths do without

    return memory_source(data)


def name_data(data: str | Source) -> str:
    """DATA as results and messages name it."""
    return data if isinstance(data, str) else str(data.root)


def find_source(
    data: str | Source, reading: Reading = AS_FOUND, cache_folder: Path | None = None
) -> Source:
    """Open DATA: `demo`, a folder, an archive, a manifest or the name of a data set.

    What was in memory is open already. reading: what the user said about it; a data_format other
    than auto forces that reader. cache_folder: where a compressed tar is decompressed to, in an
    unlinked file. Raises DataError for what cannot be found or used; ConfigError, DiskError.
    """
    if isinstance(data, str):
        data = without_file_scheme(data)
    if isinstance(data, Source):
        source = data
    elif reading.crop_boxes:
        source = read_boxes(_existing(data))
    elif reading.label_from:
        source = read_labelled_names(user_path(data), reading.label_from)
    else:
        source = _open(data, reading, cache_folder)
    if reading.label and source.kind not in _WITH_COLUMNS:
        raise ConfigError(f"--label names a column, but DATA has none: it is {source.found}")
    refuse_alike_classes(source.index.classes, source.index.labels)
    return source


def _open(data: str, reading: Reading, cache_folder: Path | None) -> Source:
    """The source of a path or a name."""
    data_format = reading.data_format
    if data == DEMO and data_format in ("auto", "archive"):
        return _demo(cache_folder)
    if data_format == "torchvision":
        return read_named(data)
    if not data:
        raise DataError("DATA is empty; give a folder, an archive, a manifest or a name")
    if is_url(data):
        return read_remote(data, reading, cache_folder)
    path = user_path(data)
    try:
        if path.exists():
            return _read(path, data_format, _formats(reading.label, cache_folder))
    except OSError as error:
        raise DataError(f"{data} cannot be read: {error.strerror or error}") from error
    if data_format == "auto" and known_name(data):
        return read_named(data)
    raise _missing(data, path)


def _existing(data: str) -> Path:
    """The path of DATA. Raises DataError if nothing is there."""
    path = user_path(data)
    if not path.exists():
        raise _missing(data, path)
    return path


def _demo(cache_folder: Path | None) -> Source:
    archive = resources.files("onsight") / "demo" / "fashion-mnist-sample.zip"
    source = read_archive(Path(str(archive)), cache_folder)
    return replace(source, found=f"the demo, a sample of Fashion-MNIST: {source.found}")


def _read(path: Path, data_format: str, formats: dict[str, _Format]) -> Source:
    chosen = _recognise(path, formats) if data_format == "auto" else formats[data_format]
    fits = path.is_dir() if chosen.is_folder else path.is_file()
    if not fits and chosen.is_folder is not None:
        kind = "folder" if chosen.is_folder else "file"
        raise DataError(
            f"{path} is not a {kind}, so it cannot be read with --data-format {data_format}"
        )
    return chosen.read(path)


def _recognise(path: Path, formats: dict[str, _Format]) -> _Format:
    """The format of an existing path. Raises DataError."""
    is_folder = path.is_dir()
    if not is_folder and not path.is_file():
        raise DataError(f"{path} is neither a folder nor a regular file")
    for one in formats.values():
        if one.is_folder in (is_folder, None) and one.recognise(path):
            return one
    raise DataError(
        f"{path} is not a file that holds a data set: a zip or tar of class folders, "
        f"a manifest ({' '.join(READERS)}), or an export of Label Studio (.json) or CVAT (.xml)"
    )


def _missing(data: str, path: Path) -> DataError:
    """The error for a path that does not exist, with similar names."""
    try:
        with os.scandir(path.parent) as scan:
            names = [entry.name for entry in islice(scan, _NEIGHBOURS)]
    except OSError:
        names = []
    if os.sep not in data:
        names += [*NAMES, DEMO]
    return DataError(f"{data} does not exist.{did_you_mean(path.name, sorted(names))}")
