"""CIFAR-10 and CIFAR-100 as published: the python or the binary version.

Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onsight.data.index import TEST, TRAIN
from onsight.data.sources.arrays import Part, array_source
from onsight.data.sources.restricted_unpickler import Array, RefusedPickle, load_plain, text
from onsight.data.sources.source import Source
from onsight.errors import DataError

_SHAPE = 3, 32, 32
_PIXELS = 3 * 32 * 32
_LABEL_BITS = 31


class _Version(NamedTuple):
    """A layout of files. label_bytes: per binary record, 0 for pickles; marker: a file it needs."""

    title: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    label_bytes: int = 0
    marker: str = ""


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_BINARY_BATCHES = tuple(f"{name}.bin" for name in _BATCHES)
_VERSIONS = (
    _Version("CIFAR-10", "cifar-10-batches-py", _BATCHES, "test_batch", "batches.meta"),
    # "train" alone could be any file, so its companion must be there too.
    _Version("CIFAR-100", "cifar-100-python", ("train",), "test", "meta", marker="meta"),
    _Version(
        "CIFAR-10 (binary)", "cifar-10-batches-bin", _BINARY_BATCHES, "test_batch.bin",
        "batches.meta.txt", label_bytes=1,
    ),
    _Version(
        "CIFAR-100 (binary)", "cifar-100-binary", ("train.bin",), "test.bin",
        "fine_label_names.txt", label_bytes=2,
    ),
)  # fmt: skip


def holds_cifar(folder: Path) -> bool:
    """Whether a folder, or its usual subfolder, holds CIFAR batches."""
    return _find(folder) is not None


def read_cifar(folder: Path) -> Source:
    """The images (32, 32, 3) of CIFAR-10 or CIFAR-100, with its fine labels.

    No code in a pickled batch is run. Raises DataError for a missing or damaged batch.
    """
    folder = Path(os.path.realpath(folder))
    found = _find(folder)
    if found is None:
        raise DataError(
            f"{folder} holds no CIFAR files: data_batch_1 ... data_batch_5 and test_batch, or "
            "train, test and meta, or the same of the binary version (.bin)"
        )
    folder, version = found
    names = [*version.train, version.test]
    splits = [TRAIN] * len(version.train) + [TEST]
    files = [_existing(folder / name) for name in names]
    read = _read_records if version.label_bytes else _read_pickle
    parts = [read(file, split, version) for file, split in zip(files, splits, strict=True)]
    return array_source("cifar", version.title, folder, files, parts, _class_names(folder, version))


def _find(folder: Path) -> tuple[Path, _Version] | None:
    """The folder that holds batches, and which version they are."""
    for version in _VERSIONS:
        for place in (folder, folder / version.folder):
            has_batch = any((place / name).is_file() for name in version.train)
            if has_batch and (place / version.marker).exists():
                return place, version
    return None


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise DataError(f"{file} is missing; download the data set again, or put the file there")
    return file


def _read_records(file: Path, split: int, version: _Version) -> Part:
    """A binary batch: records of the labels (the fine one last) and the pixels."""
    data = np.frombuffer(_content(file), np.uint8)
    width = version.label_bytes + _PIXELS
    if len(data) % width:
        raise DataError(f"{file} is damaged: {len(data):,} bytes are not a multiple of {width}")
    records = data.reshape(-1, width)
    pixels = records[:, version.label_bytes :].reshape(-1, *_SHAPE)
    return Part(split, pixels.transpose(0, 2, 3, 1), records[:, version.label_bytes - 1])


def _read_pickle(file: Path, split: int, version: _Version) -> Part:
    """A pickled batch: `data` (n, 3072) and `labels` or `fine_labels`."""
    batch = _load(file)
    data, labels = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
    try:
        if not isinstance(data, Array) or not isinstance(labels, list):
            raise RefusedPickle(f"it holds no images and labels, only {', '.join(batch)}")
        pixels = data.values()
        if pixels.shape != (len(labels), _PIXELS) or not all(type(n) is int for n in labels):
            raise RefusedPickle(f"pixels {pixels.shape} do not fit {len(labels)} labels")
        if any(n.bit_length() > _LABEL_BITS for n in labels):
            raise RefusedPickle(f"a label of over {_LABEL_BITS} bits")
    except RefusedPickle as error:
        raise _damaged(file, error) from error
    numbers = np.array(labels, np.int64)
    return Part(split, pixels.reshape(-1, *_SHAPE).transpose(0, 2, 3, 1), numbers)


def _class_names(folder: Path, version: _Version) -> Sequence[str]:
    """The names of the labels by number; none if their file is missing."""
    file = folder / version.names
    if not file.is_file():
        return ()
    if version.label_bytes:
        lines = _content(file).decode("utf-8", "replace").splitlines()
        return [line.strip() for line in lines if line.strip()]
    meta = _load(file)
    names = meta.get("fine_label_names", meta.get("label_names"))
    if not isinstance(names, list):
        raise _damaged(file, "it holds no list of label names")
    return [text(name) for name in names]


def _load(file: Path) -> dict[str, Any]:
    try:
        return load_plain(_content(file))
    except RefusedPickle as error:
        raise _damaged(file, error) from error


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error


def _damaged(file: Path, reason: object) -> DataError:
    return DataError(f"{file} is not a CIFAR file, or is damaged: {reason}")
