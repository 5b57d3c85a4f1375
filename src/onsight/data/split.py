"""Assigns images to splits and folds by their digests, so that adding images moves few others.

In a class of at least 100 different images, the split of an image does not depend on others, so
fractions hold only in expectation: of n images, 0.1 n ± 0.3 sqrt(n) are test images. Smaller
classes and folds are balanced, so adding images may move a few others.

n images, digests uint8 (n, 16).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.index import DIGEST_BYTES, TEST, TRAIN, UNSPLIT, VALIDATION, Index
from onsight.errors import ConfigError

USUAL_FOLDS = 5
ENOUGH_TEST_IMAGES = 200  # with fewer, the interval of the accuracy is wider than ±4%
_MIN_CLASS_IMAGES = 3  # different images per class; with fewer, folds are not chosen by default
_MIN_UNBALANCED = 100  # different images per class; with fewer, fractions of a class are exact


def assign_splits(
    digests: NDArray[np.uint8],
    labels: NDArray[np.int32],
    data_splits: NDArray[np.int8],
    validation_fraction: float,
    test_fraction: float,
) -> NDArray[np.int8]:
    """Assign images to splits by digest.

    If the data has no test (or validation) images, they are sampled from the training images.
    Images with equal digests get the same split. data_splits: the splits that came with the data.

    Returns:
        TRAIN, VALIDATION or TEST, int8 (n,).
    """
    splits = np.where(data_splits == UNSPLIT, np.int8(TRAIN), data_splits)
    is_free = splits == TRAIN
    numbers = np.ones(len(splits))
    numbers[is_free] = _balanced_numbers(digests[is_free], labels[is_free])
    if not (data_splits == TEST).any():
        splits[is_free & (numbers < test_fraction)] = TEST
    if not (data_splits == VALIDATION).any():
        in_band = (numbers >= test_fraction) & (numbers < test_fraction + validation_fraction)
        splits[is_free & in_band] = VALIDATION
    return splits


def assign_splits_by_time(
    times: NDArray[np.float64],
    data_splits: NDArray[np.int8],
    validation_fraction: float,
    test_fraction: float,
) -> NDArray[np.int8]:
    """Assign images to splits by time: the latest to test, and those before them to validation.

    Images with the same time are in the same split. If the data has test (or validation) images,
    there are no others. times: float64 (n,); the rest is as for `assign_splits`.
    """
    splits = np.where(data_splits == UNSPLIT, np.int8(TRAIN), data_splits)
    for split, fraction in ((TEST, test_fraction), (VALIDATION, validation_fraction)):
        is_free = splits == TRAIN
        if (data_splits == split).any() or not is_free.any():
            continue
        count = round(fraction * len(times))
        if count:
            start = np.sort(times[is_free])[-min(count, int(is_free.sum()))]
            splits[is_free & (times >= start)] = split
    return splits


def find_leaks(digests: NDArray[np.uint8], splits: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Find images with an identical copy in a higher split: test, then validation, then train.

    There are none unless the split came with the data.

    Returns:
        True for such images, (n,).
    """
    group, first = group_identical(digests)
    highest = np.zeros(len(first), np.int8)
    np.maximum.at(highest, group, splits)
    return np.asarray(splits < highest[group])


def group_identical(digests: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group identical images.

    Returns:
        The group of each image (n,), in the order of digests, and the first image of each group.
    """
    keys = np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}")[:, 0]
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return group, first


def uniform_from_digests(digests: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Convert the last 8 bytes of digests to numbers in [0, 1), float64 (n,)."""
    return _digest_words(digests) / 2.0**64


def choose_folds(
    config: Config,
    digests: NDArray[np.uint8],
    index: Index,
    max_folds: Callable[[], Choice[int]],
    is_by_time: bool = False,
) -> Choice[int]:
    """Choose the number of folds for cross-validation; 1 means that a test set is held out.

    Args:
        config: The settings.
        digests: Equal for images that stay together, uint8 (n, 16).
        index: The labels and splits of the images.
        max_folds: Returns the maximum number of folds for the time available. Called only if
            config.folds is "auto".
        is_by_time: Whether the latest images are the test set.

    Raises:
        ConfigError: If the requested folds cannot be made.
    """
    requested, tested = config.folds, int((index.splits == TEST).sum())
    if is_by_time:
        if requested not in ("auto", "1"):
            raise ConfigError(
                f"--folds {requested} mixes earlier and later images, but this data has times: "
                "leave out --folds to test on the latest, or leave out the column of times"
            )
        return Choice(1, "the latest images are the test part")
    group, _ = group_identical(digests)
    _, different = np.unique(np.stack([group, index.labels]), axis=1)
    counts = np.bincount(different, minlength=len(index.classes))
    rarest, fewest = index.classes[int(counts.argmin())], int(counts.min())
    if requested == "auto":
        images = np.bincount(index.labels, minlength=len(index.classes))
        expected = _expect_test_images(images, counts, config.test_fraction)
        return _choose_folds_automatically(config, expected, tested, rarest, fewest, max_folds)
    folds = int(requested)
    if folds > 1 and tested:
        raise ConfigError(
            f"--folds {folds} evaluates every image, but this data has a test split of its own "
            f"({tested:,} images): leave out --folds to use that"
        )
    if folds > max(1, fewest):
        remedy = f"use --folds {fewest}" if fewest > 1 else "leave out --folds"
        raise ConfigError(
            f"--folds {folds} needs {folds} different images or groups of every class, but "
            f"'{rarest}' has {fewest}: {remedy}, or add images"
        )
    return Choice(folds, "set by you")


def requests_test_part(config: Config) -> bool:
    """Return whether the settings only make sense if a test set is held out."""
    usual = Config.model_fields["test_fraction"].default
    return config.test_fraction != usual or config.test_each_epoch


def assign_folds(
    digests: NDArray[np.uint8], labels: NDArray[np.int32], folds: int
) -> NDArray[np.int8]:
    """Assign images to folds.

    The numbers of different images of a class differ by at most one between folds, and identical
    images are in the same fold. An image is in the fold that its digest determines, or in the next
    one that is not full, so that adding images moves few others.

    Returns:
        The fold of each image, from 1 on, int8 (n,).
    """
    group, first = group_identical(digests)
    classes = labels[first]
    preferred = (_digest_words(digests[first]) % np.uint64(folds)).astype(np.int64)
    counts = np.bincount(classes)
    assigned = np.full(len(first), -1)
    # Folds are first filled evenly; then the few remaining images go to different folds. A cell is
    # a class in a fold.
    for room in (np.repeat(counts // folds, folds), np.ones(len(counts) * folds, np.int64)):
        for offset in range(folds):
            rest = np.flatnonzero(assigned < 0)
            cell = classes[rest] * folds + (preferred[rest] + offset) % folds
            fits = _rank(cell) < room[cell]
            assigned[rest[fits]] = cell[fits] % folds
            room -= np.bincount(cell[fits], minlength=len(room))
    return (assigned[group] + 1).astype(np.int8)


def _balanced_numbers(digests: NDArray[np.uint8], labels: NDArray[np.int32]) -> NDArray[np.float64]:
    """Convert digests to numbers in [0, 1), evenly spaced in each small class, float64 (n,)."""
    numbers = uniform_from_digests(digests)
    different, group = np.unique(numbers, return_inverse=True)
    classes = np.full(len(different), np.iinfo(labels.dtype).max)
    np.minimum.at(classes, group, labels)  # of several classes the first, whatever the order
    counts = np.bincount(classes)
    is_small = counts[classes] < _MIN_UNBALANCED
    small = classes[is_small]
    different[is_small] = (_rank(small) + 0.5) / counts[small]  # in the order of their numbers
    return different[group]


def _digest_words(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the last 8 bytes of digests as integers, uint64 (n,)."""
    return np.ascontiguousarray(digests[:, 8:]).view(">u8")[:, 0].astype(np.uint64)


def _expect_test_images(
    images: NDArray[np.int64], different: NDArray[np.int64], fraction: float
) -> int:
    """Return about how many images a test set has, given those and the different ones per class.

    Of very small classes there are none: with a tenth, of classes of up to 5 different images.
    """
    exact = np.ceil(fraction * different - 0.5) / np.maximum(different, 1)
    shares = np.where(different < _MIN_UNBALANCED, exact, fraction)
    return round(float((shares * images).sum()))


def _choose_folds_automatically(
    config: Config,
    expected: int,
    tested: int,
    rarest: str,
    fewest: int,
    max_folds: Callable[[], Choice[int]],
) -> Choice[int]:
    """Choose cross-validation if a test set would be small, and classes and time allow it."""
    if tested:
        return Choice(1, "the data has a test split")
    if requests_test_part(config):
        return Choice(1, "a test part was requested")
    if expected >= ENOUGH_TEST_IMAGES:
        return Choice(1, f"a test part of about {expected:,} images is large enough")
    if fewest < _MIN_CLASS_IMAGES:
        return Choice(1, f"'{rarest}' has too few different images or groups: {fewest}")
    affordable = max_folds()
    if affordable.value < 2:
        return Choice(1, affordable.reason)
    folds = min(USUAL_FOLDS, fewest, affordable.value)
    reason = f"a test part would have only about {expected:,} images"
    if folds == fewest < USUAL_FOLDS:
        reason += f"; no more folds, as '{rarest}' has {fewest}"
    elif folds < USUAL_FOLDS:
        reason += f"; no more folds, as {affordable.reason}"
    return Choice(folds, reason)


def _rank(cell: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the earlier elements with the same value, for each element."""
    order = np.argsort(cell, kind="stable")
    ranked = cell[order]
    rank = np.empty_like(order)
    rank[order] = np.arange(len(cell)) - np.searchsorted(ranked, ranked)
    return rank
