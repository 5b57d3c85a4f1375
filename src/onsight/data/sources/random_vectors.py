"""Random vectors as images: data that needs no file and no network."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from onsight.data.index import TEST, TRAIN
from onsight.data.sources.arrays import Part, array_source
from onsight.data.sources.source import Source, fingerprint

VECTORS = "random-vectors"

_EACH = 100  # vectors of each split
_NUMBERS = 5
_SEED = 0
_MIDDLE = _NUMBERS * 255 / 2  # no sum of whole numbers falls on it


def draw_vectors() -> Source:
    """100 training and 100 test vectors of 5 numbers, as grey images of 1x5.

    The label says whether the sum of a vector is below or above the middle: low or high.
    """
    # The raw words of a bit generator stay the same in every numpy; its distributions may not.
    words = np.random.PCG64(_SEED).random_raw(2 * _EACH * _NUMBERS // 8)
    pixels = words.astype("<u8").view(np.uint8).reshape(2 * _EACH, 1, _NUMBERS, 1)
    labels = (pixels.sum(axis=(1, 2, 3)) > _MIDDLE).astype(np.int64)
    parts = [
        Part(TRAIN, pixels[:_EACH], labels[:_EACH]),
        Part(TEST, pixels[_EACH:], labels[_EACH:]),
    ]
    source = array_source(VECTORS, "random vectors", Path(VECTORS), [], parts, ["low", "high"])
    return replace(source, fingerprint=fingerprint([VECTORS, pixels.tobytes().hex()]))
