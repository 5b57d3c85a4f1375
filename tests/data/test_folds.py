"""Oracles: counts by numpy, and one digest at a time."""

import hashlib

import numpy as np
import pytest

from onsight.choice import Choice
from onsight.config import make_config
from onsight.data import split
from onsight.data.index import TEST, UNSPLIT, Index
from onsight.data.split import assign_folds, choose_folds, uniform_from_digests
from onsight.errors import ConfigError


@pytest.fixture(autouse=True)
def usual_threshold(monkeypatch):
    monkeypatch.setattr(split, "ENOUGH_TEST_IMAGES", 200)


def digests(numbers):
    parts = [hashlib.sha256(str(n).encode()).digest()[:16] for n in numbers]
    return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, 16)


COPIES = [0, 0, 1, 1, *range(2, 11)]


def labelled(*counts):
    return np.repeat(np.arange(len(counts)), counts).astype(np.int32)


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_every_fold_has_its_share_of_every_class(count):
    labels = labelled(997, 100, 31, 10, 4, 1)
    chosen = assign_folds(digests(range(len(labels))), labels, count)
    assert set(chosen) == set(range(1, count + 1))
    for label in range(6):
        sizes = np.bincount(chosen[labels == label], minlength=count + 1)[1:]
        assert sizes.sum() == (labels == label).sum()
        assert sizes.max() - sizes.min() <= 1


def test_identical_images_share_a_fold_even_under_other_labels():
    numbers = list(range(60)) * 3
    labels = np.concatenate([labelled(30, 30), labelled(30, 30), labelled(20, 40)])
    chosen = assign_folds(digests(numbers), labels, 5)
    assert (chosen.reshape(3, 60) == chosen[:60]).all()


def test_the_order_of_the_images_does_not_matter():
    labels = labelled(40, 25, 7)
    drawn = digests(range(72))
    order = np.random.default_rng(0).permutation(72)
    again = assign_folds(drawn[order], labels[order], 5)
    assert np.array_equal(again, assign_folds(drawn, labels, 5)[order])


def test_adding_images_moves_few_others():
    labels = (np.arange(2200) % 4).astype(np.int32)
    drawn = digests(range(2200))
    before, after = (assign_folds(drawn[:n], labels[:n], 5)[:2000] for n in (2000, 2200))
    assert 0 < (before != after).mean() < 0.1  # by rank, four of five would move


def test_folds_have_nothing_to_do_with_the_validation_part():
    drawn = digests(range(5000))
    chosen = assign_folds(drawn, np.zeros(5000, np.int32), 5)
    inside = np.bincount(chosen[uniform_from_digests(drawn) < 0.1], minlength=6)[1:]
    assert np.abs(inside - inside.mean()).max() < 4 * np.sqrt(inside.mean())


def choose(counts, given=UNSPLIT, most=5, numbers=None, **fields):
    labels = labelled(*counts)
    splits = np.full(len(labels), given, np.int8)
    names = tuple(f"class {n}" for n in range(len(counts)))
    index = Index([str(n) for n in range(len(labels))], labels, splits, names)
    drawn = digests(range(len(labels)) if numbers is None else numbers)
    return choose_folds(make_config(fields), drawn, index, lambda: Choice(most, "no time"))


@pytest.mark.parametrize(
    ("folds", "reason", "facts"),
    [
        (5, "only about 30 images", {"counts": (150, 150)}),
        (5, "only about 199 images", {"counts": (990, 1000)}),
        (1, "about 200 images is large enough", {"counts": (1000, 1000)}),
        (5, "only about 0 images", {"counts": (5,) * 420}),
        (5, "only about 150 images", {"counts": (5,) * 420 + (1500,)}),
        (1, "about 210 images is large enough", {"counts": (10,) * 210}),
        (1, "the data has a test split", {"counts": (150, 150), "given": TEST}),
        (1, "a test part was requested", {"counts": (150, 150), "test_fraction": 0.2}),
        (1, "a test part was requested", {"counts": (150, 150), "test_each_epoch": True}),
        (4, "'class 1' has 4", {"counts": (150, 4)}),
        (1, "'class 1' has too few different images or groups: 2", {"counts": (150, 2)}),
        (3, "no more folds, as no time", {"counts": (150, 150), "most": 3}),
        (1, "no time", {"counts": (150, 150), "most": 1}),
        (3, "set by you", {"counts": (150, 150), "folds": 3, "most": 1}),
        (1, "set by you", {"counts": (150, 150), "folds": "1"}),
        (7, "set by you", {"counts": (7, 3000), "folds": 7}),
    ],
)
def test_the_number_of_folds_and_why(folds, reason, facts):
    choice = choose(**facts)
    assert choice.value == folds
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("message", "facts"),
    [
        ("'class 1' has 3: use --folds 3, or add", {"counts": (9, 3), "folds": 5}),
        ("'class 1' has 1: leave out --folds", {"counts": (9, 1), "folds": 2}),
        ("'class 0' has 2: use --folds 2", {"counts": (4, 9), "folds": 3, "numbers": COPIES}),
        (r"test split of its own \(18 images\)", {"counts": (9, 9), "given": TEST, "folds": 5}),
    ],
)  # fmt: skip
def test_folds_that_cannot_be_made_are_refused(message, facts):
    with pytest.raises(ConfigError, match=message):
        choose(**facts)


@pytest.mark.parametrize("folds", [0, -1, "many", 100, "1.5"])
def test_numbers_of_folds_that_make_no_sense_are_refused(folds):
    with pytest.raises(ConfigError, match="--folds"):
        make_config({"folds": folds})
