"""The split: a function of each image's digest, so that adding images moves no old one.

No rule that considers other images can promise that, so the shares hold for each class only
in expectation: a class of n images has 0.1 n ± 0.3 sqrt(n) test images.
"""

import numpy as np
from numpy.typing import NDArray

from onsight.data.index import TEST, TRAIN, UNSPLIT, VALIDATION

DIGEST_BYTES = 16


def words(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Each digest's last 8 bytes as a whole number. digests: uint8 (n, 16)."""
    return np.ascontiguousarray(digests[:, 8:]).view(">u8")[:, 0].astype(np.uint64)


def draw(digests: NDArray[np.uint8]) -> NDArray[np.float64]:
    """A number in [0, 1) from each digest's last 8 bytes. digests: uint8 (n, 16)."""
    return words(digests) / 2.0**64


def different(digests: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which images are identical: each one's group (n,), and a member of each group.

    Groups are numbered in the order of their digests.
    """
    keys = np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}")[:, 0]
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return group, first


def assign(
    digests: NDArray[np.uint8],
    given: NDArray[np.int8],
    validation_fraction: float,
    test_fraction: float,
) -> NDArray[np.int8]:
    """The split of each image: the given one, with missing splits taken from train.

    If there are no given test (or validation) images, that share of train is drawn by digest.
    Returns int8 (n,) of TRAIN, VALIDATION or TEST.
    """
    splits = np.where(given == UNSPLIT, np.int8(TRAIN), given)
    number = draw(digests)
    free = splits == TRAIN
    if not (given == TEST).any():
        splits[free & (number < test_fraction)] = TEST
    if not (given == VALIDATION).any():
        band = (number >= test_fraction) & (number < test_fraction + validation_fraction)
        splits[free & band] = VALIDATION
    return splits


def assign_by_time(
    times: NDArray[np.float64],
    given: NDArray[np.int8],
    validation_fraction: float,
    test_fraction: float,
) -> NDArray[np.int8]:
    """The split of each image by its time: the latest are for the test, those before validate.

    Images of the same time are on the same side; a given split stays. times: float64 (n,).
    Returns int8 (n,) of TRAIN, VALIDATION or TEST.
    """
    splits = np.where(given == UNSPLIT, np.int8(TRAIN), given)
    for split, fraction in ((TEST, test_fraction), (VALIDATION, validation_fraction)):
        free = splits == TRAIN
        if (given == split).any() or not free.any():
            continue
        count = round(fraction * len(times))
        if count:
            latest = np.sort(times[free])[-min(count, int(free.sum()))]
            splits[free & (times >= latest)] = split
    return splits


def leaks(digests: NDArray[np.uint8], splits: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Images that have an identical copy in a higher split: test above validation above train.

    Only a split that came with the data can have any. Returns bool (n,).
    """
    group, first = different(digests)
    cleanest = np.zeros(len(first), np.int8)
    np.maximum.at(cleanest, group, splits)
    return np.asarray(splits < cleanest[group])
