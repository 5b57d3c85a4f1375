"""The order of an epoch over shards: every image once, few shards at a time, any rank count."""

import numpy as np
import pytest

from onsight.data.shards.order import LANES, WINDOW, draw_shard_order, estimate_open_files


def made(counts):
    """Images of shards with these counts, in an order of no shards: (n, 2)."""
    shards = np.repeat(np.arange(len(counts)), counts)
    mixed = np.random.default_rng(0).permutation(shards).astype(np.int32)
    return np.stack([mixed, mixed], axis=1)


def batches(n, size):
    sizes = np.full(-(-n // size), size)
    sizes[-1] = n - sizes[:-1].sum()
    return sizes


@pytest.mark.parametrize(
    ("counts", "size"), [([10] * 40, 16), ([1, 90, 3], 7), ([5], 2), ([30] * 3, 90)]
)
def test_every_image_once(counts, size):
    shards = made(counts)
    order = draw_shard_order(shards, 1, 2, batches(len(shards), size))
    assert sorted(order.tolist()) == list(range(len(shards)))


def test_it_is_a_function_of_seed_and_epoch():
    shards, sizes = made([20] * 10), batches(200, 32)
    order = draw_shard_order(shards, 1, 2, sizes)
    assert np.array_equal(order, draw_shard_order(shards, 1, 2, sizes))
    assert not np.array_equal(order, draw_shard_order(shards, 1, 3, sizes))
    assert not np.array_equal(order, draw_shard_order(shards, 2, 2, sizes))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_the_same_batches_and_read_their_own_shards(ranks):
    shards, size = made([50] * 80), 32
    order = draw_shard_order(shards, 0, 0, batches(4000, size), ranks)
    assert np.array_equal(order, draw_shard_order(shards, 0, 0, batches(4000, size)))
    read = [set() for _ in range(ranks)]
    for start in range(0, 4000, size):
        for rank, mine in enumerate(np.array_split(order[start : start + size], ranks)):
            read[rank] |= set(shards[mine, 0].tolist())
    assert sum(map(len, read)) <= 80 + ranks  # a shard on the border of two lanes is read twice


def test_few_shards_are_open_at_a_time_and_they_are_mixed():
    shards = made([100] * 80)
    order = draw_shard_order(shards, 5, 0, batches(8000, 64))
    seen = shards[order, 0]
    first = {shard: np.flatnonzero(seen == shard)[0] for shard in range(80)}
    last = {shard: np.flatnonzero(seen == shard)[-1] for shard in range(80)}
    at_once = [
        sum(first[shard] <= place <= last[shard] for shard in range(80))
        for place in range(0, 8000, 100)
    ]
    assert max(at_once) <= estimate_open_files(np.arange(80))
    inner = [seen[start : start + 64] for start in range(2000, 6000, 64)]
    assert np.mean([len(set(batch.tolist())) for batch in inner]) > LANES * WINDOW * 0.8


def test_parts_of_a_file_are_read_near_each_other():
    part = np.repeat(np.arange(400), 5).astype(np.int32)  # 20 files of 20 row groups
    shards = np.stack([part // 20, part], axis=1)
    seen = shards[draw_shard_order(shards, 3, 1, batches(2000, 50)), 0]
    spans = [np.ptp(np.flatnonzero(seen == file)) for file in range(20)]
    assert np.median(spans) < 2000 / LANES
    assert estimate_open_files(np.arange(400) // 20) <= 2 * LANES + 1
