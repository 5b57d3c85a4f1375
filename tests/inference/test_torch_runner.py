"""Parts of a batch computed in parallel: the same results, each thread's own features."""

import threading

import pytest
import torch
from torch import nn

from onsight.inference.torch_runner import ParallelForward
from onsight.models.head import capturing_features


@pytest.fixture
def two_threads():
    former = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(former)


@pytest.mark.parametrize(
    ("count", "whole", "even"),
    [(1, [1], [1]), (3, [3], [2, 1]), (8, [4, 4], [4, 4]), (9, [4, 4, 1], [4, 4, 1])],
)
@pytest.mark.parametrize("is_even", [False, True])
def test_every_image_is_computed_once_and_in_order(two_threads, count, whole, even, is_even):
    images = torch.arange(count).reshape(-1, 1, 1, 1)
    parallel = ParallelForward(4)
    parallel.divides_small_batches = is_even
    parts = parallel.map(lambda part: part, images)
    sizes = even if is_even else whole
    assert [len(part) for part in parts] == sizes
    assert torch.cat(parts).equal(images)


def test_parts_are_computed_at_the_same_time(two_threads):
    meeting = threading.Barrier(2, timeout=10)
    ParallelForward(1).map(lambda part: meeting.wait(), torch.zeros(2, 1))


def test_threads_are_shared_and_the_callers_setting_is_unchanged(two_threads):
    parts = ParallelForward(1).map(lambda part: torch.get_num_threads(), torch.zeros(2, 1))
    assert parts == [1, 1]
    assert torch.get_num_threads() == 2
    assert ParallelForward(1).map(lambda part: torch.get_num_threads(), torch.zeros(1, 1)) == [2]


def test_one_thread_computes_alone():
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        caller = threading.get_ident()
        assert ParallelForward(4).map(lambda part: threading.get_ident(), torch.zeros(8, 1)) == [
            caller
        ]
    finally:
        torch.set_num_threads(former)


def test_features_belong_to_the_thread_that_computed_them(two_threads):
    meeting = threading.Barrier(2, timeout=10)

    class Meeting(nn.Module):
        def forward(self, images):
            meeting.wait()  # both are inside when either head is called
            return images

    net = nn.Sequential(Meeting(), nn.Linear(3, 2))

    def features(part):
        with capturing_features(net) as kept:
            net(part)
            meeting.wait()
        return torch.cat(kept)

    images = torch.rand(4, 3)
    assert torch.cat(ParallelForward(2).map(features, images)).equal(images)
