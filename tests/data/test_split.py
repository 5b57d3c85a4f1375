import hashlib

import numpy as np
import pytest

from onsight.data.index import TEST, TRAIN, UNSPLIT, VALIDATION
from onsight.data.split import assign_splits, find_leaks, uniform_from_digests


def digests(numbers):
    parts = [hashlib.sha256(str(n).encode()).digest()[:16] for n in numbers]
    return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, 16)


def unsplit(count):
    return np.full(count, UNSPLIT, np.int8)


def split_one_class(numbers, given=None, validation=0.1, test=0.1):
    """The splits of images of one class, int8 (n,)."""
    labels = np.zeros(len(numbers), np.int32)
    given = unsplit(len(numbers)) if given is None else given
    return assign_splits(digests(numbers), labels, given, validation, test)


def test_shares_are_80_10_10_within_chance():
    splits = split_one_class(range(50_000))
    shares = np.bincount(splits, minlength=4)[1:] / 50_000
    assert np.abs(shares - [0.8, 0.1, 0.1]).max() < 4 * np.sqrt(0.1 * 0.9 / 50_000)


def test_shares_hold_for_every_class_within_chance():
    for start in range(0, 10_000, 1000):
        splits = split_one_class(range(start, start + 1000))
        assert abs((splits == TEST).sum() - 100) < 4 * np.sqrt(90)
        assert abs((splits == VALIDATION).sum() - 100) < 4 * np.sqrt(90)


def test_the_second_half_of_a_digest_alone_decides():
    """The first half numbers the images, so the first of them are a fair sample of each side."""
    halves = [0x00, 0x80, 0xFF]
    rows = [[first] * 8 + [second] + [0] * 7 for first in halves for second in halves]
    numbers = uniform_from_digests(np.array(rows, np.uint8))
    assert numbers.tolist() == [0.0, 0.5, 255 / 256] * 3


def test_adding_images_to_a_large_class_moves_no_old_one():
    few = split_one_class(range(100))
    many = split_one_class(range(5000))
    assert np.array_equal(few, many[:100])


def test_identical_images_fall_on_the_same_side():
    twice = list(range(500)) * 2
    splits = split_one_class(twice)
    assert np.array_equal(splits[:500], splits[500:])
    assert not find_leaks(digests(twice), splits).any()


def test_a_larger_validation_share_moves_no_test_image():
    small = split_one_class(range(1000))
    large = split_one_class(range(1000), validation=0.3)
    assert np.array_equal(small == TEST, large == TEST)
    assert ((small == VALIDATION) <= (large == VALIDATION)).all()


def test_given_splits_stay_and_the_missing_one_is_drawn_from_train():
    given = np.array([TRAIN] * 800 + [TEST] * 200, np.int8)
    splits = split_one_class(range(1000), given)
    assert (splits[800:] == TEST).all()
    assert set(splits[:800]) == {TRAIN, VALIDATION}
    given[:100] = VALIDATION
    assert np.array_equal(split_one_class(range(1000), given), given)


def test_given_validation_images_never_become_test_images():
    given = np.array([TRAIN] * 800 + [VALIDATION] * 200, np.int8)
    splits = split_one_class(range(1000), given)
    assert (splits[800:] == VALIDATION).all()
    drawn = split_one_class(range(800))
    assert np.array_equal(splits[:800] == TEST, drawn == TEST)
    assert set(splits[:800]) == {TRAIN, TEST}


def test_twins_across_given_splits_leave_the_dirtier_side():
    given = np.array([TRAIN, TEST, TRAIN, VALIDATION, VALIDATION, TEST, TRAIN], np.int8)
    marked = find_leaks(digests([1, 1, 2, 2, 3, 3, 4]), given)
    assert marked.tolist() == [True, False, True, False, True, False, False]


@pytest.mark.parametrize(
    ("images", "held_out"), [(4, 0), (6, 1), (10, 1), (25, 2), (63, 6), (99, 10)]
)
def test_small_classes_have_exact_fractions_of_test_and_validation_images(images, held_out):
    for start in range(0, 10_000, 100):
        splits = split_one_class(range(start, start + images))
        assert (splits == TEST).sum() == held_out
        assert abs((splits != TRAIN).sum() - 0.2 * images) <= 0.5


def test_a_small_class_tests_the_images_that_the_threshold_of_a_large_one_would_test_first():
    numbers = uniform_from_digests(digests(range(60)))
    splits = split_one_class(range(60))
    assert np.array_equal(
        np.argsort(numbers)[:6], np.flatnonzero(splits == TEST)[np.argsort(numbers[splits == TEST])]
    )


def test_classes_do_not_move_each_others_images():
    both = digests([*range(40), *range(1000, 1070)])
    labels = np.repeat(np.array([0, 1], np.int32), [40, 70])
    splits = assign_splits(both, labels, unsplit(110), 0.1, 0.1)
    assert np.array_equal(splits[:40], split_one_class(range(40)))
    assert np.array_equal(splits[40:], split_one_class(range(1000, 1070)))


def test_copies_in_a_small_class_count_once_and_stay_together_even_under_two_labels():
    numbers = [*range(50), *range(50), *range(10)]
    labels = np.repeat(np.array([0, 0, 1], np.int32), [50, 50, 10])
    splits = assign_splits(digests(numbers), labels, unsplit(110), 0.1, 0.1)
    assert np.array_equal(splits[:50], splits[50:100])
    assert np.array_equal(splits[:10], splits[100:])
    assert (splits[:50] == TEST).sum() == 5


@pytest.mark.parametrize(("images", "added"), [(20, 1), (60, 1), (60, 10), (90, 100), (99, 1)])
def test_adding_images_to_a_small_class_moves_few_old_ones(images, added):
    """The mean over 50 classes; a split drawn anew would move a third of the images."""
    moved = []
    for start in range(0, 50_000, 1000):
        before = split_one_class(range(start, start + images))
        after = split_one_class(range(start, start + images + added))
        moved.append((before != after[:images]).mean())
    assert np.mean(moved) < 2 * np.sqrt(0.2 / images)


def test_images_that_came_with_a_split_do_not_count():
    given = np.array([UNSPLIT] * 50 + [TEST] * 100, np.int8)
    splits = split_one_class(range(150), given)
    assert (splits[:50] == VALIDATION).sum() == 5
    assert (splits[50:] == TEST).all()
