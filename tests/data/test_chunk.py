"""Chunks hold each batch once, in order, and no more images than they may."""

import torch

from onsight.data.loader import group_batches, images_per_chunk


def test_batches_stay_whole_and_in_order():
    shares = list(torch.arange(23).split(4))
    groups = list(group_batches(shares, 10))
    assert [len(group) for group in groups] == [2, 2, 2]
    assert torch.equal(torch.cat([ids for group in groups for ids in group]), torch.arange(23))
    assert all(sum(map(len, group)) <= 10 for group in groups)


def test_a_batch_larger_than_a_chunk_is_a_chunk():
    assert [len(group) for group in group_batches(torch.arange(30).split(15), 10)] == [1, 1]
    assert list(group_batches([], 10)) == []


def test_the_number_of_images_follows_their_size():
    assert images_per_chunk(28 * 28) == 8192
    assert 4000 < images_per_chunk(32 * 32 * 3) < 8192 + 1
    assert images_per_chunk(224 * 224 * 3) == (128 << 20) // (5 * 224 * 224 * 3)
    assert images_per_chunk(10**9) == 1
