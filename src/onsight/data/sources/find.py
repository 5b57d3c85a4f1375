"""Recognise the format of DATA and open it; formats are tried in a fixed order."""

import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.config import make_config
from onsight.data.shards.cache import RemoteShards, ShardCache
from onsight.data.shards.remote import Remote, RemoteFile, UrlPath, is_url, strip_file_scheme
from onsight.data.sources.annotation_files import is_json, is_xml
from onsight.data.sources.archive import detect_archive, read_archive
from onsight.data.sources.boxes import read_boxes
from onsight.data.sources.cifar import contains_cifar, read_cifar
from onsight.data.sources.folder import is_hidden, read_folder, read_labelled_names
from onsight.data.sources.hugging_face import is_hugging_face, open_parquet, read_hugging_face
from onsight.data.sources.idx import contains_idx, read_idx
from onsight.data.sources.label_exports import (
    contains_roboflow,
    read_cvat,
    read_label_studio,
    read_roboflow,
)
from onsight.data.sources.manifest import is_manifest, read_manifest
from onsight.data.sources.named import NAMES, match_name, needs_download, read_named
from onsight.data.sources.source import CopySpace, Source
from onsight.data.sources.tables import READERS
from onsight.data.sources.web_dataset import contains_shards, open_web_dataset, read_shards
from onsight.errors import ConfigError, DataError
from onsight.files import refuse_inside_data, similar_names, user_path
from onsight.text import plural
from onsight.untrusted import check_value

if TYPE_CHECKING:
    from onsight.data.sources.memory import InMemory

DEMO = "demo"
_WITH_LABEL_COLUMN = ("manifest", "huggingface", "labelstudio")  # formats that --label applies to
_REMOTE_FORMATS = {".tar": "webdataset", ".parquet": "huggingface"}  # format by the shards' ending
_INVISIBLE = re.compile(r"[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")  # soft hyphen, zero width


@dataclass(frozen=True)
class ReadOptions:
    """The user's options for reading DATA."""

    data_format: str = "auto"  # a key of `_formats`; torchvision for a dataset's name
    label: str = ""  # the column that holds the labels, in a table
    label_from: str = ""  # a regular expression that finds the label in a path
    crop_boxes: bool = False  # whether each annotated box becomes an image
    background: tuple[int, int, int] = (255, 255, 255)  # behind transparent images with boxes
    pixel_limit: int = 64_000_000  # of images with boxes
    shard_cache_gigabytes: float = 0.0  # limit for copies; 0 for half of the free disk

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ReadOptions":
        """Take the options from a config, which may lack some. Raises ConfigError."""
        options = {field.name: config[field.name] for field in fields(cls) if field.name in config}
        decoding = [name for name in ("background", "pixel_limit_megapixels") if name in config]
        checked = make_config({name: config[name] for name in decoding})
        options |= {"background": checked.background_rgb, "pixel_limit": checked.pixel_limit}
        return cls(**options)


DEFAULT_OPTIONS = ReadOptions()


class _Format(NamedTuple):
    """A data format that a local path can have."""

    is_folder: bool | None  # True for folders, False for files, None for either
    recognise: Callable[[Path], object]
    read: Callable[[Path], Source]


def _formats(label: str, cache_folder: Path | None) -> dict[str, _Format]:
    """Return the data formats by their names in the config, in the order they are tried."""
    read_cached_archive = partial(read_archive, cache_folder=cache_folder)
    return {
        "idx": _Format(True, contains_idx, read_idx),
        "cifar": _Format(True, contains_cifar, read_cifar),
        "huggingface": _Format(
            None,
            is_hugging_face,
            partial(read_hugging_face, label=label, cache_folder=cache_folder),
        ),
        "webdataset": _Format(
            True, contains_shards, partial(read_shards, cache_folder=cache_folder)
        ),
        "roboflow": _Format(True, contains_roboflow, read_roboflow),
        "folders": _Format(True, Path.is_dir, read_folder),
        "manifest": _Format(False, is_manifest, partial(read_manifest, label=label)),
        "labelstudio": _Format(False, is_json, partial(read_label_studio, label=label)),
        "cvat": _Format(False, is_xml, read_cvat),
        "archive": _Format(False, detect_archive, read_cached_archive),
    }


def resolve_data(data: "str | Path | InMemory") -> str | Source:
    """Return a path or name as text, and anything else as a Source. Raises DataError."""
    if isinstance(data, (str, Path)):
        return str(data)
    from onsight.data.sources.memory import read_memory_data  # loads torch, unneeded for paths

    return read_memory_data(data)


def name_data(data: str | Source) -> str:
    """Return DATA's name as results and messages show it."""
    return data if isinstance(data, str) else data.name


def find_source(
    data: str | Source, options: ReadOptions = DEFAULT_OPTIONS, cache_folder: Path | None = None
) -> Source:
    """Open DATA: `demo`, a folder, an archive, a manifest, a URL or the name of a dataset.

    data: a Source is already open. options: a data_format other than auto forces that reader.
    cache_folder: for the indexes and copies of shards, and for a compressed tar, which is
    decompressed into an unlinked file there. Raises DataError for missing or unusable data;
    ConfigError, DiskError; OutputError for a cache inside the data.
    """
    given_name = name_data(data)
    if isinstance(data, str):
        data = strip_file_scheme(data)
        if cache_folder and not any(map(is_hidden, cache_folder.parts)):  # such files are no images
            refuse_inside_data(cache_folder, data, "../cache", "--cache-folder")
    if isinstance(data, Source):
        source = data
    elif options.crop_boxes:
        path = user_path(data)
        if not path.exists():
            raise _missing(data, path)
        source = read_boxes(path, options.background, options.pixel_limit)
    elif options.label_from:
        source = read_labelled_names(user_path(data), options.label_from)
    else:
        source = _open(data, options, cache_folder)
    if options.label and source.kind not in _WITH_LABEL_COLUMN:
        raise ConfigError(f"--label names a column, but DATA has none: it is {source.description}")
    try:
        check_value([*source.index.classes], "surrogateescape")
    except ValueError as error:
        raise DataError(f"the name of a class cannot be used: {error}") from error
    for name in filter(None, source.index.classes):
        if name.splitlines() != [name]:
            raise DataError(f"the name of the class {name!r} has a line break; rename the class")
    refuse_similar_classes(source.index.classes, source.index.labels)
    return source if source is data else replace(source, given_name=given_name)


def find_recorded_source(data: object, config: object, cache_folder: Path | None) -> Source:
    """Open the DATA that the file of a run names. Raises like find_source, and for refuse_remote.

    data, config: as they are in the file, which anybody may have written.
    """
    if not isinstance(data, str):
        raise DataError("the model file does not record what it was trained on")
    recorded = config if isinstance(config, dict) else {}
    known = {name: recorded[name] for name in vars(DEFAULT_OPTIONS) if name in recorded}
    try:
        options = ReadOptions.from_config(make_config(known).model_dump())
    except ConfigError as error:
        raise DataError(f"the model file's settings cannot be used: {error}") from error
    refuse_remote(data, options.data_format)
    return find_source(data, options, cache_folder)


def refuse_remote(data: str, data_format: str) -> None:
    """Raise DataError if opening DATA that a file names would contact another machine."""
    is_absent = needs_download(data) and (
        data_format == "torchvision" or not user_path(data).exists()
    )
    if is_absent or is_url(strip_file_scheme(data)):
        raise DataError(
            f"{data} is not on this machine, and a place that only a file names is not contacted: "
            "name it yourself if you trust it"
        )


def refuse_similar_classes(classes: Sequence[str], labels: NDArray[np.int32]) -> None:
    """Raise DataError for two classes that differ only by case, spaces or Unicode form.

    Single visible characters are exempt: in a dataset of letters, case matters. labels:
    int32 (n,), to count the images of both classes.
    """
    first: dict[str, int] = {}
    for number, name in enumerate(classes):
        if len(name) == 1 and not name.isspace():
            continue
        other = first.setdefault(_simplify_class(name), number)
        if other != number:
            counts = [int((labels == label).sum()) for label in (other, number)]
            raise DataError(
                f"the classes {classes[other]!r} (n = {counts[0]:,}) and {name!r} "
                f"(n = {counts[1]:,}) differ only by case, spaces or Unicode form; "
                "give them one name"
            )


def _open(data: str, options: ReadOptions, cache_folder: Path | None) -> Source:
    """Open a path, a URL or a name."""
    data_format = options.data_format
    if data == DEMO and data_format in ("auto", "archive"):
        return _read_demo(cache_folder)
    if data_format == "torchvision":
        return read_named(data)
    if not data:
        raise DataError("DATA is empty; give a folder, an archive, a manifest or a name")
    if is_url(data):
        return _read_remote(data, options, cache_folder)
    path = user_path(data)
    try:
        if path.exists():
            return _read(path, data_format, _formats(options.label, cache_folder))
    except OSError as error:
        raise DataError(f"{data} cannot be read: {error.strerror or error}") from error
    if data_format == "auto" and match_name(data):
        return read_named(data)
    raise _missing(data, path)


def _read_demo(cache_folder: Path | None) -> Source:
    archive = resources.files("onsight") / "demo" / "fashion-mnist-sample.zip"
    source = read_archive(Path(str(archive)), cache_folder)
    description = f"the demo, a sample of Fashion-MNIST: {source.description}"
    return replace(source, description=description)


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
    """Return the format of an existing path. Raises DataError."""
    is_folder = path.is_dir()
    if not is_folder and not path.is_file():
        raise DataError(f"{path} is neither a folder nor a regular file")
    for candidate in formats.values():
        if candidate.is_folder in (is_folder, None) and candidate.recognise(path):
            return candidate
    raise DataError(
        f"{path} is not a recognised dataset file (expected a zip or tar of class folders, "
        f"a manifest ({' '.join(READERS)}), or an export of Label Studio (.json) or CVAT (.xml))"
    )


def _read_remote(url: str, options: ReadOptions, cache_folder: Path | None) -> Source:
    """Open the shards behind a URL. Raises DataError, RemoteFailed, DiskError."""
    remote = Remote.open(url)
    files = remote.files(tuple(_REMOTE_FORMATS))
    ending = _find_shard_ending(url, files, options.data_format)
    files = [file for file in files if file.name.endswith(ending)]
    limit = int(options.shard_cache_gigabytes * 1e9)
    cache = ShardCache(cache_folder and cache_folder / "shards", limit)
    store = RemoteShards(remote, files, cache)
    root = UrlPath(url)
    copies = CopySpace(max(file.size for file in files), cache.limit_bytes)
    if ending == ".tar":
        source = open_web_dataset(root, store, cache_folder, copies)
    else:
        source = open_parquet(root, store, options.label, cache_folder, copies)
    unversioned = sum(not file.version for file in files)
    note = (
        f"read {plural(unversioned, 'shard')} to see whether anything has changed: the server "
        "sends neither an ETag nor a date"
    )
    return replace(source, notes=[*source.notes, note]) if unversioned else source


def _find_shard_ending(url: str, files: list[RemoteFile], data_format: str) -> str:
    """Return the ending of the shards' names. Raises DataError if there is none or two."""
    present = [
        ending
        for ending, name in _REMOTE_FORMATS.items()
        if data_format in ("auto", name) and any(file.name.endswith(ending) for file in files)
    ]
    if len(present) == 1:
        return present[0]
    if present:
        raise DataError(
            f"{url} holds both .tar and .parquet files; choose with --data-format webdataset or "
            "huggingface"
        )
    raise DataError(
        f"{url} holds no shards (.tar or .parquet). `onsight shard DATA --out {url}` writes them "
        "from images of this machine; other kinds of DATA have to be copied here"
    )


def _missing(data: str, path: Path) -> DataError:
    """Return the error for a path that does not exist, with similar names."""
    names = () if os.sep in data else (*NAMES, DEMO)
    return DataError(f"{data} does not exist.{similar_names(path, names)}")


def _simplify_class(name: str) -> str:
    folded = _INVISIBLE.sub("", unicodedata.normalize("NFKC", name).casefold())
    return "".join(folded.replace("_", " ").split())
