"""Several ranks against one process: what the plan says, and that measuring changes nothing."""

import pytest
import torch
from prepared import make_prepared

from onsight.training.autotune import rank_speed
from onsight.training.autotune.rank_speed import RankTimes, compare_ranks
from onsight.training.ranks.world import World

FIELDS = {"learning_rate": 0.01, "model": "lenet", "image_size": "32", "batch_size": 16}


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (RankTimes(0.010, 0.004, 0.008, 0.000), "60% is sending gradients and waiting"),
        (RankTimes(0.010, 0.009, 0.008, 0.004), "40% is waiting for pictures"),
        (RankTimes(0.010, 0.009, 0.008, 0.000), "50% is shares of a batch that are too small"),
        (RankTimes(0.004, 0.004, 0.008, 0.000), "nothing is lost by sharing"),
    ],
)
def test_the_greatest_loss_is_named(monkeypatch, times, words, bars):
    config, data = make_prepared(bars, **FIELDS)
    monkeypatch.setattr(rank_speed, "_measure", lambda *arguments: times)

    class Two(World):
        size = 2

    choice = compare_ranks(config, data, Two())
    assert choice.value == 2
    assert choice.figure == pytest.approx(16 / times.together)
    ratio = times.alone / times.together
    assert f"in one process with as many threads: {ratio:.2f} times as fast" in choice.reason
    assert words in choice.reason


def test_a_world_of_one_is_as_fast_as_one_process_and_no_picture_or_number_is_taken(
    monkeypatch, bars
):
    config, data = make_prepared(bars, **FIELDS)
    config = config.model_copy(update={"threads": 1, "precision": "fp32"})
    monkeypatch.setattr(rank_speed, "_WINDOW_SECONDS", 0.0)
    before = data.new_network(config).state_dict()
    found = rank_speed._measure(config, data, World(), 16)
    assert min(found.together, found.apart, found.alone, found.waiting) > 0
    assert found.waiting < found.together
    after = data.new_network(config).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
