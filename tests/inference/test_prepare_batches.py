"""Images are prepared ahead of the model: in order, and never more than a bounded number."""

import itertools
import threading

import numpy as np
import pytest

from onsight.errors import ImageError
from onsight.inference.images import prepare_batches
from onsight_explain.threads import usable_cores

PIXELS = np.zeros((2, 2, 1), np.uint8)


def read(number):
    if number % 5 == 0:
        raise ImageError(f"{number} is broken")
    return PIXELS + number % 200


def test_batches_are_in_order_and_of_equal_size():
    batches = list(prepare_batches(range(103), read, 8))
    every = [prepared for batch in batches for prepared in batch]
    assert [prepared.image for prepared in every] == list(range(103))
    for prepared in every:
        assert (prepared.problem == f"{prepared.image} is broken") == (prepared.image % 5 == 0)
        assert prepared.problem or prepared.pixels[0, 0, 0] == prepared.image
    sizes = [sum(prepared.problem is None for prepared in batch) for batch in batches]
    assert sizes == [8] * 10 + [2]


def test_the_next_batch_is_decoded_while_one_is_computed_and_no_more():
    requested, decoded = itertools.count(), set()
    all_ahead = threading.Event()
    bound = 2 * 64 + 4 * usable_cores() * 8 + 8

    def note(number):
        decoded.add(number)
        if len(decoded) == 2 * 64:
            all_ahead.set()
        return PIXELS

    batches = prepare_batches(requested, note, 64)
    next(batches)
    assert all_ahead.wait(30)  # while nobody takes a batch
    assert next(requested) <= bound
    batches.close()
    assert next(requested) <= bound + 8


def test_an_unexpected_error_is_raised():
    def fail(number):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        next(prepare_batches(range(3), fail, 2))
    assert list(prepare_batches([], fail, 2)) == []
