"""A rank whose share of a batch is empty takes part in the step, with nothing to say in it."""

from types import SimpleNamespace

import pytest
import torch

from onsight.ranks.ddp import Replica


class Statistics:
    """Stands in for those of a whole batch; notes whether they are gathered."""

    weight, is_open = 1.0, False

    def __enter__(self):
        self.is_open = True

    def __exit__(self, *error):
        self.is_open = False


@pytest.mark.parametrize("statistics", [None, Statistics()])
@pytest.mark.parametrize("count", [0, 3])
def test_a_rank_without_a_image_counts_for_nothing(statistics, count):
    seen = []

    def forward(inputs):
        seen.append((len(inputs), statistics and (statistics.weight, statistics.is_open)))
        return inputs.sum((1, 2, 3))[:, None].expand(-1, 4)

    replica = SimpleNamespace(statistics=statistics)
    logits = Replica.run(replica, forward, torch.ones(count, 3, 2, 2))
    assert logits.shape == (count, 4)
    weight = 1.0 if count else 0.0
    assert seen == [(max(1, count), statistics and (weight, True))]
    if statistics:
        assert (statistics.weight, statistics.is_open) == (1.0, False)
