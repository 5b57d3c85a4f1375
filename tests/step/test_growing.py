"""Oracle: work whose seconds are known, by a fake clock."""

import pytest
import torch
from slow import Clock

from onsight.step import timing as growing
from onsight.step.timing import Timing, time_batch_sizes
from onsight.tune import fit_epochs


@pytest.fixture
def worker(monkeypatch):
    """A function that makes work of (overhead + images * each) seconds, and its calls."""
    clock, calls = Clock(), []
    monkeypatch.setattr(growing.time, "perf_counter", clock)

    def make(overhead, each, first=0.0):
        def timed(images):
            seconds = overhead + images * each + (0 if calls else first)
            calls.append(images)
            clock.now += seconds
            return seconds

        return timed

    return make, calls, clock


@pytest.mark.parametrize(("fitting", "timed"), [(64, 64), (20, 16), (2, 2)])
def test_an_accelerator_is_timed_on_the_largest_batch_that_fits(monkeypatch, fitting, timed):
    monkeypatch.setattr(fit_epochs, "release_cached_memory", lambda device: None)

    def measure(images):
        if images > fitting:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return 0.01 * images

    assert fit_epochs._time_work(measure, 64, 1.0, torch.device("meta")).seconds == {
        timed: 0.01 * timed
    }
    if fitting == 2:  # a single image says nothing of a batch, and batch norm refuses it
        with pytest.raises(torch.OutOfMemoryError):
            fit_epochs._time_work(lambda images: measure(3), 64, 1.0, torch.device("meta"))


def test_batches_grow_as_long_as_there_is_time(worker):
    make, calls, clock = worker
    timing = time_batch_sizes(make(0.0, 0.01), 128, 2.5)
    assert calls == [2] * 4 + [8] * 3 + [32] * 3  # 1.28 s; a step of 128 would take 1.28 s more
    assert clock.now == pytest.approx(0.01 * (4 * 2 + 3 * (8 + 32)))
    assert timing.seconds == pytest.approx({2: 0.02, 8: 0.08, 32: 0.32})
    assert timing.at(128) == pytest.approx(1.28)
    assert timing.at(16) == pytest.approx(0.16)
    assert timing.per_image == pytest.approx(0.01)


def test_warming_up_does_not_count(worker):
    make, _, _ = worker
    assert time_batch_sizes(make(0.0, 0.01, first=1.0), 8, 10.0).seconds[2] == pytest.approx(0.02)


def test_slow_work_is_done_only_once_more_than_to_warm_up(worker):
    make, calls, clock = worker
    assert time_batch_sizes(make(0.0, 3.0), 128, 1.0).seconds == {2: 6.0}
    assert (calls, clock.now) == ([2, 2], 12.0)


def test_work_that_is_mostly_overhead_grows_faster(worker):
    make, calls, _ = worker
    time_batch_sizes(make(0.1, 0.0001), 128, 2.0)
    assert max(calls) == 128


def test_a_slow_start_of_small_batches_does_not_end_the_timing(worker):
    make, calls, _ = worker
    assert time_batch_sizes(make(0.4, 0.0001), 8, 1.7).per_image < 0.06
    assert 8 in calls


def test_fewer_images_than_the_smallest_batch(worker):
    make, calls, _ = worker
    assert time_batch_sizes(make(0.0, 0.5), 1, 1.0).seconds == {1: 0.5}
    assert set(calls) == {1}


def test_the_shorter_of_two_timings_counts():
    both = Timing({2: 1.0, 8: 3.0}).best(Timing({2: 0.5, 32: 9.0}))
    assert both.seconds == {2: 0.5, 8: 3.0, 32: 9.0}
    assert both.per_image == pytest.approx(0.25)
    assert both.scaled(2.0, ranks=2).seconds == {4: 1.0, 16: 6.0, 64: 18.0}
