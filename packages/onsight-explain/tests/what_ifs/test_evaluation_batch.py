"""Larger batches in evaluation."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader

from onsight_explain.what_ifs.evaluation_batch import EvaluationBatch


@pytest.mark.parametrize(
    ("share", "size", "items", "count"),
    [(0.2, 32, 1000, 1), (0.05, 32, 1000, 0), (0.2, 200, 1000, 0), (0.2, 32, 100, 0)],
)
def test_tried_if_evaluation_takes_long_in_small_batches(seen, share, size, items, count):
    plain = seen().trace.loader
    loader = replace(plain, batch_size=size, items=items)
    found = EvaluationBatch.worth(seen(phases={"evaluation": 10 * share}, evaluation_loader=loader))
    assert len(found) == count
    assert EvaluationBatch.worth(seen(phases={"evaluation": 5.0})) == []


def test_the_same_items_in_order_and_training_as_before(apply, numbers):
    apply(evaluation_batch=48)
    batches = [images for images, _ in DataLoader(numbers(), 4)]
    assert [len(batch) for batch in batches] == [48, 16]
    assert torch.equal(torch.cat(batches), numbers().tensors[0])
    assert DataLoader(numbers(), 64).batch_size == 64
    assert DataLoader(numbers(), 4, shuffle=True).batch_size == 4
