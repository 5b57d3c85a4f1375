"""CIFAR-10 and CIFAR-100 as published: the python or the binary version.

Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onsight.data.index import TEST, TRAIN
from onsight.data.sources.arrays import LabelledImages, build_array_source
from onsight.data.sources.restricted_unpickler import (
    PickledArray,
    RefusedPickle,
    decode_text,
    load_plain,
)
from onsight.data.sources.source import Source
from onsight.errors import DataError
from onsight.untrusted import read_bytes, read_text

_SHAPE = 3, 32, 32
_PIXELS = 3 * 32 * 32
_LABEL_BITS = 31


class _Version(NamedTuple):
    """How one version of CIFAR is laid out in files."""

    title: str
    folder: str  # folder in the published archive
    train: tuple[str, ...]
    test: str
    names: str  # the file of class names
    label_bytes: int = 0  # label bytes in each binary record; 0 for pickles
    marker: str = ""  # name of another required file


_BATCHES = tuple(f"data_batch_{batch}" for batch in range(1, 6))
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


def contains_cifar(folder: Path) -> bool:
    """Return whether a folder, or its usual subfolder, contains CIFAR batches."""
    return _find(folder) is not None


def read_cifar(folder: Path) -> Source:
    """Return the images (32, 32, 3) of CIFAR-10, or of CIFAR-100 with its fine labels.

    No code in a pickled batch is executed. Raises DataError for a missing or damaged batch.
    """
    folder = Path(os.path.realpath(folder))
    location = _find(folder)
    if location is None:
        raise DataError(
            f"{folder} holds no CIFAR files: data_batch_1 ... data_batch_5 and test_batch, or "
            "train, test and meta, or the same of the binary version (.bin)"
        )
    folder, version = location
    names = [*version.train, version.test]
    splits = [TRAIN] * len(version.train) + [TEST]
    files = [folder / name for name in names]
    missing = next((file for file in files if not file.is_file()), None)
    if missing:
        raise DataError(f"{missing} is missing; download the dataset again, or put the file there")
    read = _read_records if version.label_bytes else _read_pickle
    parts = [read(file, split, version) for file, split in zip(files, splits, strict=True)]
    return build_array_source(
        "cifar", version.title, folder, files, parts, _read_class_names(folder, version)
    )


def _find(folder: Path) -> tuple[Path, _Version] | None:
    """Return the folder of the batches and their version, or None."""
    for version in _VERSIONS:
        for candidate in (folder, folder / version.folder):
            has_batch = any((candidate / name).is_file() for name in version.train)
            if has_batch and (candidate / version.marker).exists():
                return candidate, version
    return None


def _read_records(file: Path, split: int, version: _Version) -> LabelledImages:
    """Read a binary batch: records of the labels (the fine one last) and the pixels."""
    data = np.frombuffer(read_bytes(file), np.uint8)
    width = version.label_bytes + _PIXELS
    if len(data) % width:
        raise DataError(f"{file} is damaged: {len(data):,} bytes are not a multiple of {width}")
    records = data.reshape(-1, width)
    pixels = records[:, version.label_bytes :].reshape(-1, *_SHAPE)
    return LabelledImages(split, pixels.transpose(0, 2, 3, 1), records[:, version.label_bytes - 1])


def _read_pickle(file: Path, split: int, version: _Version) -> LabelledImages:
    """Read a pickled batch: `data` (n, 3072) and `labels` or `fine_labels`."""
    batch = _unpickle(file)
    data, labels = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
    try:
        if not isinstance(data, PickledArray) or not isinstance(labels, list):
            raise RefusedPickle(f"it holds no images and labels, only {', '.join(batch)}")
        pixels = data.values()
        if pixels.shape != (len(labels), _PIXELS) or not all(type(n) is int for n in labels):
            raise RefusedPickle(f"pixels {pixels.shape} do not fit {len(labels)} labels")
        if any(n.bit_length() > _LABEL_BITS for n in labels):
            raise RefusedPickle(f"a label of over {_LABEL_BITS} bits")
    except RefusedPickle as error:
        raise _damaged(file, error) from error
    numbers = np.array(labels, np.int64)
    return LabelledImages(split, pixels.reshape(-1, *_SHAPE).transpose(0, 2, 3, 1), numbers)


def _read_class_names(folder: Path, version: _Version) -> Sequence[str]:
    """Return the class names in the order of labels; none if their file is missing."""
    file = folder / version.names
    if not file.is_file():
        return ()
    if version.label_bytes:
        lines = read_text(file, "replace").splitlines()
        return [line.strip() for line in lines if line.strip()]
    meta = _unpickle(file)
    names = meta.get("fine_label_names", meta.get("label_names"))
    if not isinstance(names, list):
        raise _damaged(file, "it holds no list of label names")
    return [decode_text(name) for name in names]


def _unpickle(file: Path) -> dict[str, Any]:
    try:
        return load_plain(read_bytes(file))
    except RefusedPickle as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, reason: object) -> DataError:
    return DataError(f"{file} is not a CIFAR file, or is damaged: {reason}")
