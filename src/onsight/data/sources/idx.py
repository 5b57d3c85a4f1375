"""IDX files, the format of MNIST and its relatives, gzipped or not.

Source: http://yann.lecun.com/exdb/mnist/ (a big-endian header, then the values).
"""

import gzip
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.data.index import SPLIT_NAMES, TEST, TRAIN, UNSPLIT, VALIDATION
from onsight.data.sources.arrays import LabelledImages, build_array_source
from onsight.data.sources.source import Source
from onsight.errors import DataError
from onsight.limits import COMPRESSION_RATIO, IDX_IMAGE_PIXELS
from onsight.untrusted import open_regular

_IMAGES = re.compile(r"(.+)-images[-.]idx3-ubyte(\.gz)?")
_UBYTE = 0x08
_SPLITS = {"train": TRAIN, "test": TEST, "t10k": TEST, "val": VALIDATION}
_RATIO_FREE_BYTES = 100_000_000  # size up to which any ratio is allowed


class _FilePair(NamedTuple):
    """The two files of one split."""

    split: int
    images: Path
    labels: Path


def contains_idx(folder: Path) -> bool:
    """Return whether a folder contains IDX image files."""
    return any(_IMAGES.fullmatch(name) for name in os.listdir(folder))


def read_idx(folder: Path) -> Source:
    """Return the images (H, W, 1) of the IDX files in a folder, by split.

    Raises DataError for a missing, damaged or truncated file, or several datasets at once.
    """
    folder = Path(os.path.realpath(folder))
    pairs = sorted(_find_pairs(folder))
    if not pairs:
        raise DataError(f"{folder} has no file such as train-images-idx3-ubyte or ...-ubyte.gz")
    for first, second in pairwise(pairs):
        if first.split == second.split:
            raise DataError(
                f"{folder} holds several datasets: {first.images.name} and {second.images.name} "
                f"are both {SPLIT_NAMES[first.split]}. Put each one in a folder of its own."
            )
    files = [file for pair in pairs for file in (pair.images, pair.labels)]
    return build_array_source(
        "idx", "IDX files", folder, files, [_read(pair) for pair in pairs], ()
    )


def _find_pairs(folder: Path) -> Iterator[_FilePair]:
    """Yield the pairs of files in a folder; a plain file is preferred to its gzipped copy."""
    names = sorted(os.listdir(folder))
    for prefix in sorted({match[1] for name in names if (match := _IMAGES.fullmatch(name))}):
        images = _find_file(folder, names, f"{prefix}-images", "idx3-ubyte")
        labels = _find_file(folder, names, f"{prefix}-labels", "idx1-ubyte")
        split = next((n for word, n in _SPLITS.items() if word in prefix.lower()), UNSPLIT)
        yield _FilePair(split, images, labels)


def _find_file(folder: Path, names: Sequence[str], prefix: str, ending: str) -> Path:
    pattern = re.compile(rf"{re.escape(prefix)}[-.]{ending}(\.gz)?")
    for name in names:
        if pattern.fullmatch(name):
            return folder / name
    raise DataError(f"{folder / prefix}-{ending}[.gz] is missing; put it next to the others")


def _read(pair: _FilePair) -> LabelledImages:
    images, labels = _read_array(pair.images, 3), _read_array(pair.labels, 1)
    if len(images) != len(labels):
        raise DataError(
            f"{pair.images} has {len(images):,} images, "
            f"but {pair.labels} has {len(labels):,} labels"
        )
    if not 0 < math.prod(images.shape[1:]) <= IDX_IMAGE_PIXELS:
        raise DataError(f"{pair.images} has images of {images.shape[1]}x{images.shape[2]} pixels")
    return LabelledImages(pair.split, images[..., np.newaxis], labels)


def _read_array(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the values of an IDX file in the shape that its header declares."""
    is_packed = path.suffix == ".gz"
    try:
        with open(open_regular(path), "rb") as stored:
            file: BufferedIOBase = gzip.GzipFile(fileobj=stored) if is_packed else stored
            shape = _parse_shape(path, file.read(4 + 4 * dimensions), dimensions)
            expected, size = math.prod(shape), path.stat().st_size
            if is_packed and expected > COMPRESSION_RATIO * size + _RATIO_FREE_BYTES:
                raise DataError(
                    f"{path} is suspiciously compressed, or damaged: its header says {shape}, "
                    f"but it has {size:,} bytes. If you trust it, unpack it"
                )
            # One more byte reveals a file that is too long; a wrong header must not fill memory.
            data = file.read((expected if is_packed else min(expected, size)) + 1)
    except MemoryError as error:
        raise DataError(f"{path} does not fit in memory: its header says {shape}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or truncated: {error}") from error
    if len(data) != expected:
        kind = "longer" if len(data) > expected else "shorter"
        raise DataError(f"{path} is {kind} than its header says ({shape}); download it again")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _parse_shape(path: Path, header: bytes, dimensions: int) -> tuple[int, ...]:
    """Return the sizes in a header. Raises DataError for the wrong kind of header."""
    if header[:4] != bytes([0, 0, _UBYTE, dimensions]) or len(header) != 4 + 4 * dimensions:
        raise DataError(
            f"{path} is not an IDX file of {dimensions}-dimensional bytes: "
            f"it starts with {header[:4].hex(' ') or 'nothing'}"
        )
    return struct.unpack(f">{dimensions}I", header[4:])
