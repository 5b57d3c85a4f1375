"""Splits and folds: functions of each image's digest, so that adding images moves few others.

No rule that considers other images could leave every old one in its split, so the shares hold for
each class only in expectation: a class of n images has 0.1 n ± 0.3 sqrt(n) test images. Folds are
balanced, and may move a few.

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
_MIN_CLASS_IMAGES = 3  # distinct images per class needed for folds to be chosen automatically


def assign_splits(
    digests: NDArray[np.uint8],
    given: NDArray[np.int8],
    validation_fraction: float,
    test_fraction: float,
) -> NDArray[np.int8]:
    """Return the split of each image: the given one, with missing splits sampled from train.

    If there are no given test (or validation) images, that share of train is sampled by digest.
    Returns int8 (n,) of TRAIN, VALIDATION or TEST.
    """
    splits = np.where(given == UNSPLIT, np.int8(TRAIN), given)
    number = uniform_from_digests(digests)
    free = splits == TRAIN
    if not (given == TEST).any():
        splits[free & (number < test_fraction)] = TEST
    if not (given == VALIDATION).any():
        band = (number >= test_fraction) & (number < test_fraction + validation_fraction)
        splits[free & band] = VALIDATION
    return splits


def assign_splits_by_time(
    times: NDArray[np.float64],
    given: NDArray[np.int8],
    validation_fraction: float,
    test_fraction: float,
) -> NDArray[np.int8]:
    """Return the split of each image by its time: the latest test, those before them validate.

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


def find_leaks(digests: NDArray[np.uint8], splits: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Mark images with an identical copy in a higher split: test above validation above train.

    Only a split that came with the data can have any. Returns bool (n,).
    """
    group, first = group_identical(digests)
    highest = np.zeros(len(first), np.int8)
    np.maximum.at(highest, group, splits)
    return np.asarray(splits < highest[group])


def group_identical(digests: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each image's group of identical images (n,), and the first member of each group.

    Groups are numbered in the order of their digests.
    """
    keys = np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}")[:, 0]
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return group, first


def uniform_from_digests(digests: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return a number in [0, 1) made of each digest's last 8 bytes: float64 (n,)."""
    return _digest_words(digests) / 2.0**64


def choose_folds(
    config: Config,
    digests: NDArray[np.uint8],
    index: Index,
    max_folds: Callable[[], Choice[int]],
    is_by_time: bool = False,
) -> Choice[int]:
    """Choose the number of folds for cross-validation; 1 means that a test part is held out.

    max_folds: returns how many folds the time budget allows, called if config.folds is "auto";
    is_by_time: the latest images are the test part. Raises ConfigError for requested folds that
    cannot be made.
    """
    requested, tested = config.folds, int((index.splits == TEST).sum())
    if is_by_time:
        if requested not in ("auto", "1"):
            raise ConfigError(
                f"--folds {requested} mixes earlier and later images, but this data has times: "
                "leave out --folds to test on the latest, or leave out the column of times"
            )
        return Choice(1, "the latest images are the test part")
    _, first = group_identical(digests)
    counts = np.bincount(index.labels[first], minlength=len(index.classes))
    rarest, fewest = index.classes[int(counts.argmin())], int(counts.min())
    if requested == "auto":
        return _choose_folds_automatically(config, len(digests), tested, rarest, fewest, max_folds)
    folds = int(requested)
    if folds > 1 and tested:
        raise ConfigError(
            f"--folds {folds} evaluates every image, but this data has a test split of its own "
            f"({tested:,} images): leave out --folds to use that"
        )
    if folds > max(1, fewest):
        remedy = f"use --folds {fewest}" if fewest > 1 else "leave out --folds"
        raise ConfigError(
            f"--folds {folds} needs {folds} different images of every class, but '{rarest}' has "
            f"{fewest}: {remedy}, or add images"
        )
    return Choice(folds, "set by you")


def assign_folds(
    digests: NDArray[np.uint8], labels: NDArray[np.int32], folds: int
) -> NDArray[np.int8]:
    """Return the fold of each image, from 1 on: int8 (n,). Identical images share theirs.

    The folds have equally many different images of each class, give or take one. An image goes
    to the fold that its digest names, or if that is full to the next one, so that adding images
    moves few others.
    """
    group, first = group_identical(digests)
    classes = labels[first]
    wanted = (_digest_words(digests[first]) % np.uint64(folds)).astype(np.int64)
    counts = np.bincount(classes)
    chosen = np.full(len(first), -1)
    # Fill every fold evenly first; then the few remaining images go to different folds.
    for room in (np.repeat(counts // folds, folds), np.ones(len(counts) * folds, np.int64)):
        for turn in range(folds):
            waiting = np.flatnonzero(chosen < 0)
            cell = classes[waiting] * folds + (wanted[waiting] + turn) % folds
            fits = _rank(cell) < room[cell]
            chosen[waiting[fits]] = cell[fits] % folds
            room -= np.bincount(cell[fits], minlength=len(room))
    return (chosen[group] + 1).astype(np.int8)


def _digest_words(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return each digest's last 8 bytes as a whole number: uint64 (n,)."""
    return np.ascontiguousarray(digests[:, 8:]).view(">u8")[:, 0].astype(np.uint64)


def _choose_folds_automatically(
    config: Config,
    images: int,
    tested: int,
    rarest: str,
    fewest: int,
    max_folds: Callable[[], Choice[int]],
) -> Choice[int]:
    """Choose cross-validation if the test part would be small and classes and time allow it."""
    expected = round(config.test_fraction * images)
    if tested:
        return Choice(1, "the data has a test split")
    usual = Config.model_fields["test_fraction"].default
    if config.test_fraction != usual or config.test_each_epoch:
        return Choice(1, "a test part was requested")
    if expected >= ENOUGH_TEST_IMAGES:
        return Choice(1, f"a test part of about {expected:,} images is large enough")
    if fewest < _MIN_CLASS_IMAGES:
        return Choice(1, f"'{rarest}' has too few different images: {fewest}")
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
    """Count the earlier entries with the same value."""
    order = np.argsort(cell, kind="stable")
    ranked = cell[order]
    rank = np.empty_like(order)
    rank[order] = np.arange(len(cell)) - np.searchsorted(ranked, ranked)
    return rank
