"""How many images evaluation and prediction take at once."""

import pytest
import torch

from onsight.evaluation.predictions import evaluation_batch_size


@pytest.mark.parametrize(
    ("device", "size", "batch"),
    [
        ("cpu", (28, 28), 256),
        ("cpu", (95, 96), 256),
        ("cpu", (96, 96), 16),
        ("cuda", (96, 96), 256),
    ],
)
def test_larger_images_have_smaller_batches_on_a_cpu(device, size, batch):
    assert evaluation_batch_size(torch.device(device), size) == batch
