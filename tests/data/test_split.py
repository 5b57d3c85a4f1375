import hashlib

import numpy as np

from onsight.data.index import TEST, TRAIN, UNSPLIT, VALIDATION
from onsight.data.split import assign_splits, find_leaks, uniform_from_digests

NONE = UNSPLIT


def digests(numbers):
    parts = [hashlib.sha256(str(n).encode()).digest()[:16] for n in numbers]
    return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, 16)


def unsplit(count):
    return np.full(count, NONE, np.int8)


def test_shares_are_80_10_10_within_chance():
    splits = assign_splits(digests(range(50_000)), unsplit(50_000), 0.1, 0.1)
    shares = np.bincount(splits, minlength=4)[1:] / 50_000
    assert np.abs(shares - [0.8, 0.1, 0.1]).max() < 4 * np.sqrt(0.1 * 0.9 / 50_000)


def test_shares_hold_for_every_class_within_chance():
    for start in range(0, 10_000, 1000):
        splits = assign_splits(digests(range(start, start + 1000)), unsplit(1000), 0.1, 0.1)
        assert abs((splits == TEST).sum() - 100) < 4 * np.sqrt(90)
        assert abs((splits == VALIDATION).sum() - 100) < 4 * np.sqrt(90)


def test_the_second_half_of_a_digest_alone_decides():
    """The first half numbers the images, so the first of them are a fair sample of each side."""
    halves = [0x00, 0x80, 0xFF]
    rows = [[first] * 8 + [second] + [0] * 7 for first in halves for second in halves]
    numbers = uniform_from_digests(np.array(rows, np.uint8))
    assert numbers.tolist() == [0.0, 0.5, 255 / 256] * 3


def test_adding_images_moves_no_old_one():
    few = assign_splits(digests(range(100)), unsplit(100), 0.1, 0.1)
    many = assign_splits(digests(range(5000)), unsplit(5000), 0.1, 0.1)
    assert np.array_equal(few, many[:100])


def test_identical_images_fall_on_the_same_side():
    twice = list(range(500)) * 2
    splits = assign_splits(digests(twice), unsplit(1000), 0.1, 0.1)
    assert np.array_equal(splits[:500], splits[500:])
    assert not find_leaks(digests(twice), splits).any()


def test_a_larger_validation_share_moves_no_test_image():
    small = assign_splits(digests(range(1000)), unsplit(1000), 0.1, 0.1)
    large = assign_splits(digests(range(1000)), unsplit(1000), 0.3, 0.1)
    assert np.array_equal(small == TEST, large == TEST)
    assert ((small == VALIDATION) <= (large == VALIDATION)).all()


def test_given_splits_stay_and_the_missing_one_is_drawn_from_train():
    given = np.array([TRAIN] * 800 + [TEST] * 200, np.int8)
    splits = assign_splits(digests(range(1000)), given, 0.1, 0.1)
    assert (splits[800:] == TEST).all()
    assert set(splits[:800]) == {TRAIN, VALIDATION}
    given[:100] = VALIDATION
    assert np.array_equal(assign_splits(digests(range(1000)), given, 0.1, 0.1), given)


def test_given_validation_images_never_become_test_images():
    given = np.array([TRAIN] * 800 + [VALIDATION] * 200, np.int8)
    splits = assign_splits(digests(range(1000)), given, 0.1, 0.1)
    assert (splits[800:] == VALIDATION).all()
    drawn = assign_splits(digests(range(800)), unsplit(800), 0.1, 0.1)
    assert np.array_equal(splits[:800] == TEST, drawn == TEST)
    assert set(splits[:800]) == {TRAIN, TEST}


def test_twins_across_given_splits_leave_the_dirtier_side():
    given = np.array([TRAIN, TEST, TRAIN, VALIDATION, VALIDATION, TEST, TRAIN], np.int8)
    marked = find_leaks(digests([1, 1, 2, 2, 3, 3, 4]), given)
    assert marked.tolist() == [True, False, True, False, True, False, False]
