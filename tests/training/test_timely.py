"""Oracle: a fake clock that each batch advances by known seconds."""

import numpy as np
import pytest
import torch
from slow import Clock

from onsight.data.loader import Images, Loader
from onsight.ranks.world import World
from onsight.training import timely
from onsight.training.timely import evaluate_in_time, shortened
from onsight.tune.budget import Budget

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timely.time, "monotonic", clock)
    return clock


def make_loader(count=100, batch_size=10):
    images = Images(
        torch.zeros(count, 4, dtype=torch.uint8),
        torch.arange(count),
        torch.arange(count) % 2,
        (2, 2, 1),
    )
    return Loader(images, torch.arange(count), batch_size, CPU)


def evaluate(clock, budget, loader, seconds):
    def forward(images):
        clock.now += seconds * len(images)
        return torch.zeros(len(images), 2)

    return evaluate_in_time(forward, loader, budget, World())


@pytest.mark.parametrize(("each", "judged"), [(0.1, 100), (0.2, 100), (0.3, 60), (3.0, 10)])
def test_evaluation_ends_before_the_batch_that_would_be_late(clock, each, judged):
    budget = Budget(21.5 + 110 * 0.1, clock)
    # The 20 once more, to calibrate, and twice more, to tell unlike images.
    budget.reserve(tested=50, validation=20, image_seconds=0.1)
    assert budget.validation_seconds == pytest.approx(20)
    # The first batch is expected to take 1 s, and every other as long as the one before it.
    per_image = evaluate(clock, budget, make_loader(), each)
    assert np.array_equal(per_image.ids, np.arange(judged))
    assert budget.image_seconds == pytest.approx(each)
    assert budget.now == clock.now


def test_nothing_is_evaluated_when_the_time_is_over(clock):
    budget = Budget(10.0, clock)
    budget.reserve(0, 100, 0.1)
    clock.now = 9.0
    assert len(evaluate(clock, budget, make_loader(), 0.1)) == 0
    assert budget.image_seconds == 0.1


def test_a_loader_is_cut_to_what_fits_in_batches_of_a_second(clock):
    budget = Budget(101.5, clock)
    budget.reserve(0, 100, 0.125)
    short = shortened(make_loader(batch_size=256), budget)
    assert (len(short.ids), short.batch_size) == (80, 8)
    assert torch.equal(short.ids, torch.arange(80))
    budget.reserve(0, 100, 0.001)
    short = shortened(make_loader(batch_size=256), budget)
    assert (len(short.ids), short.batch_size) == (100, 256)
