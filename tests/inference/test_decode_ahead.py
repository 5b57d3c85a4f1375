"""Images are prepared ahead of the model: in order, and never more than a bounded number."""

import itertools
import threading

import numpy as np
import pytest

from onsight.errors import ImageError
from onsight.inference.decode_ahead import prepared_batches
from onsight_explain.cores import usable_cores

PIXELS = np.zeros((2, 2, 1), np.uint8)


def read(number):
    if number % 5 == 0:
        raise ImageError(f"{number} is broken")
    return PIXELS + number % 200


def test_batches_are_in_order_and_of_equal_size():
    batches = list(prepared_batches(range(103), read, 8))
    every = [one for batch in batches for one in batch]
    assert [one.image for one in every] == list(range(103))
    for one in every:
        assert (one.problem == f"{one.image} is broken") == (one.image % 5 == 0)
        assert one.problem or one.pixels[0, 0, 0] == one.image
    sizes = [sum(one.problem is None for one in batch) for batch in batches]
    assert sizes == [8] * 10 + [2]


def test_the_next_batch_is_decoded_while_one_is_computed_and_no_more():
    asked, decoded = itertools.count(), set()
    all_ahead = threading.Event()
    bound = 2 * 64 + 4 * usable_cores() * 8 + 8

    def note(number):
        decoded.add(number)
        if len(decoded) == 2 * 64:
            all_ahead.set()
        return PIXELS

    batches = prepared_batches(asked, note, 64)
    next(batches)
    assert all_ahead.wait(30)  # while nobody takes a batch
    assert next(asked) <= bound
    batches.close()
    assert next(asked) <= bound + 8


def test_an_error_that_is_no_fault_of_a_image_comes_out():
    def fail(number):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        next(prepared_batches(range(3), fail, 2))
    assert list(prepared_batches([], fail, 2)) == []
