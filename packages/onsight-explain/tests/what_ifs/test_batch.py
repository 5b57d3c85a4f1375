"""Larger batches."""

import pytest
from torch.utils.data import DataLoader

from onsight_explain.what_ifs.batch import LargerBatch


@pytest.mark.parametrize(
    ("loader", "labels"),
    [
        ({"batch_size": 4, "items": 10_000}, ["batch 64", "batch 256"]),
        ({"batch_size": 4, "items": 1000}, ["batch 64"]),
        ({"batch_size": 100, "items": 10_000}, ["batch 200"]),
        ({"batch_size": None}, []),
    ],
)
def test_tried_if_enough_batches_remain(baseline, loader, labels):
    found = LargerBatch.candidates(baseline(loader=loader))
    assert [one.label for one in found] == labels


def test_what_costs_the_same_in_a_larger_batch():
    assert LargerBatch(4).fixed_share(4.0) == 1.0  # a step takes as long
    assert LargerBatch(4).fixed_share(1.6) == pytest.approx(0.5)  # 1.6 * (0.5 + 4 * 0.5) = 4
    assert LargerBatch(4).fixed_share(1.0) == 0.0


def test_only_training_loaders_get_it(apply, numbers):
    apply(batch_factor=4)
    assert DataLoader(numbers(), 4, shuffle=True).batch_size == 16
    assert DataLoader(numbers(), 4).batch_size == 4
    assert DataLoader(numbers(8), 4, shuffle=True).batch_size == 8  # no more than there are
