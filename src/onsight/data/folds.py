"""Folds: parts of the images, each to be judged by a model that is trained on the others."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.index import TEST, Index
from onsight.data.split import different, words
from onsight.errors import ConfigError

USUAL_FOLDS = 5
ENOUGH_TEST_IMAGES = 200  # with fewer, the interval of the accuracy is wider than ±4%
_FEWEST_IMAGES = 3  # of a class, for folds to be chosen unasked


def choose_folds(
    config: Config,
    digests: NDArray[np.uint8],
    index: Index,
    most: Callable[[], Choice[int]],
    is_by_time: bool = False,
) -> Choice[int]:
    """In how many folds images are judged; 1: by a test part that is held out.

    most: called for how many folds there is time for, if none were asked for; is_by_time: whether
    the latest images are the test part. Raises ConfigError for folds that were asked for but
    cannot be made.
    """
    asked, tested = config.folds, int((index.splits == TEST).sum())
    if is_by_time:
        if asked not in ("auto", "1"):
            raise ConfigError(
                f"--folds {asked} mixes earlier and later images, but this data has times: leave "
                "out --folds to test on the latest, or leave out the column of times"
            )
        return Choice(1, "the latest images are the test part")
    _, first = different(digests)
    counts = np.bincount(index.labels[first], minlength=len(index.classes))
    rarest, fewest = index.classes[int(counts.argmin())], int(counts.min())
    if asked == "auto":
        return _choose_unasked(config, len(digests), tested, rarest, fewest, most)
    folds = int(asked)
    if folds > 1 and tested:
        raise ConfigError(
            f"--folds {folds} judges every image, but this data has a test split of its own "
            f"({tested:,} images): leave out --folds to use that"
        )
    if folds > max(1, fewest):
        remedy = f"use --folds {fewest}" if fewest > 1 else "leave out --folds"
        raise ConfigError(
            f"--folds {folds} needs {folds} different images of every class, but '{rarest}' has "
            f"{fewest}: {remedy}, or add images"
        )
    return Choice(folds, "as asked")


def _choose_unasked(
    config: Config,
    images: int,
    tested: int,
    rarest: str,
    fewest: int,
    most: Callable[[], Choice[int]],
) -> Choice[int]:
    expected = round(config.test_fraction * images)
    if tested:
        return Choice(1, "the data has a test split")
    usual = Config.model_fields["test_fraction"].default
    if config.test_fraction != usual or config.test_each_epoch:
        return Choice(1, "a test part was asked for")
    if expected >= ENOUGH_TEST_IMAGES:
        return Choice(1, f"a test part of about {expected:,} images is large enough")
    if fewest < _FEWEST_IMAGES:
        return Choice(1, f"'{rarest}' has too few different images: {fewest}")
    affordable = most()
    if affordable.value < 2:
        return Choice(1, affordable.reason)
    folds = min(USUAL_FOLDS, fewest, affordable.value)
    reason = f"a test part would have only about {expected:,} images"
    if folds == fewest < USUAL_FOLDS:
        reason += f"; no more folds, as '{rarest}' has {fewest}"
    elif folds < USUAL_FOLDS:
        reason += f"; no more folds, as {affordable.reason}"
    return Choice(folds, reason)


def assign_folds(
    digests: NDArray[np.uint8], labels: NDArray[np.int32], folds: int
) -> NDArray[np.int8]:
    """The fold of each image, counted from 1: int8 (n,). Identical images share theirs.

    The folds have equally many different images of each class, give or take one. An image goes
    to the fold that its digest names, or if that is full to the next one, so that adding images
    moves few others.
    """
    group, first = different(digests)
    classes = labels[first]
    wanted = (words(digests[first]) % np.uint64(folds)).astype(np.int64)
    counts = np.bincount(classes)
    chosen = np.full(len(first), -1)
    # First every fold is filled evenly; then the few that are left over go to different folds.
    for room in (np.repeat(counts // folds, folds), np.ones(len(counts) * folds, np.int64)):
        for turn in range(folds):
            waiting = np.flatnonzero(chosen < 0)
            cell = classes[waiting] * folds + (wanted[waiting] + turn) % folds
            fits = _rank(cell) < room[cell]
            chosen[waiting[fits]] = cell[fits] % folds
            room -= np.bincount(cell[fits], minlength=len(room))
    return (chosen[group] + 1).astype(np.int8)


def _rank(cell: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many earlier entries have the same value."""
    order = np.argsort(cell, kind="stable")
    ranked = cell[order]
    rank = np.empty_like(order)
    rank[order] = np.arange(len(cell)) - np.searchsorted(ranked, ranked)
    return rank
