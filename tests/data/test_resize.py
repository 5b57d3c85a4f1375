"""Resizing without torch gives torch's bytes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onsight.data.fit import resize_with_torch, resize_without_torch

_SIDE = st.integers(1, 90)


@settings(max_examples=150, deadline=None)
@given(_SIDE, _SIDE, _SIDE, _SIDE, st.sampled_from([1, 3]), st.integers(0, 2**32 - 1))
def test_without_torch_the_bytes_are_the_same(height, width, tall, wide, channels, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    expected = resize_with_torch(pixels, tall, wide)
    assert np.array_equal(resize_without_torch(pixels, tall, wide), expected)


def test_a_large_image_is_resized_alike_too():
    pixels = np.random.default_rng(0).integers(0, 256, (1500, 2000, 3), np.uint8)
    assert np.array_equal(resize_without_torch(pixels, 37, 224), resize_with_torch(pixels, 37, 224))
