"""Oracle: cells that take planted times and record when they are called."""

import math

import pytest
import torch

from onsight.explainer.rounds import (
    OUT_OF_MEMORY,
    ROUNDS,
    DeviceCandidate,
    TimedCell,
    run_rounds,
    speed_ratio,
    warm_up,
)

A = DeviceCandidate("a", torch.device("cpu"), 1, "fp32")
B = DeviceCandidate("b", torch.device("cpu"), 2, "fp32")


@pytest.fixture
def calls():
    return []


@pytest.fixture
def make_cell(calls):
    def make(candidate, size, step_seconds):
        def seconds(steps):
            calls.append((candidate.name, size))
            return steps * step_seconds

        return TimedCell(candidate, size, seconds)

    return make


def measure(cells):
    told = []
    warm_up(cells, lambda: told.append(1))
    assert len(told) == len(cells)
    run_rounds(cells, lambda: told.append(1))
    assert len(told) == len(cells) * (1 + ROUNDS)


def test_candidates_take_turns(make_cell, calls):
    cells = [make_cell(one, size, 1e-3) for size in (4, 32) for one in (A, B)]
    warm_up(cells, lambda: None)
    calls.clear()
    run_rounds(cells, lambda: None)
    assert calls == [("a", 4), ("b", 4), ("a", 32), ("b", 32)] * ROUNDS


def test_the_result_is_the_median_seconds_per_step(make_cell):
    cell = make_cell(A, 32, 2e-3)
    measure([cell])
    assert len(cell.rounds) == ROUNDS
    assert cell.steps == 60  # of 2 ms in a window of 0.12 s
    assert cell.step_seconds == pytest.approx(2e-3)
    assert cell.images_per_second == pytest.approx(16_000)
    cell.rounds = [5.0, 1.0, 2.0]
    assert cell.step_seconds == 2.0


def test_out_of_memory_affects_one_cell_only(make_cell):
    cells = [make_cell(A, 4, 1e-3), make_cell(A, 512, 1e-3), make_cell(B, 512, 1e-3)]

    def fail(steps):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    cells[1].time_steps = fail
    measure(cells)
    assert (cells[1].problem, cells[1].rounds) == (OUT_OF_MEMORY, [])
    assert [len(cell.rounds) for cell in cells] == [ROUNDS, 0, ROUNDS]


def test_out_of_memory_in_a_late_round_drops_the_earlier_rounds_of_that_cell(make_cell):
    cell = make_cell(A, 4, 1e-3)
    warm_up([cell], lambda: None)
    answers = iter([0.12, 0.12])

    def fail_later(steps):
        for seconds in answers:
            return seconds
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    cell.time_steps = fail_later
    run_rounds([cell], lambda: None)
    assert (cell.problem, cell.rounds) == (OUT_OF_MEMORY, [])


def test_other_failures_are_not_hidden(make_cell):
    cell = make_cell(A, 4, 1e-3)

    def fail(steps):
        raise RuntimeError("device-side assert")

    cell.time_steps = fail
    with pytest.raises(RuntimeError, match="device-side assert"):
        warm_up([cell], lambda: None)


def test_a_step_that_would_take_too_long_is_not_run(make_cell, calls):
    cells = [make_cell(A, 4, 1.0), make_cell(B, 4, 0.1), make_cell(A, 32, 8.0)]
    cells.append(make_cell(B, 32, 0.8))
    measure(cells)
    assert cells[2].problem == "not timed: about 8 s per step"
    assert ("a", 32) not in calls
    assert [bool(cell.rounds) for cell in cells] == [True, True, False, True]


def test_a_slow_first_step_of_a_gpu_does_not_count(make_cell):
    cells = [make_cell(A, 4, 1e-3), make_cell(A, 512, 2e-3)]
    later, first = cells[0].time_steps, [1.0]
    cells[0].time_steps = lambda steps: first.pop() if first else later(steps)
    measure(cells)
    assert not any(cell.problem for cell in cells)
    assert cells[0].steps == 120  # of 1 ms in a window of 0.12 s


def test_the_first_size_is_timed_even_if_slow_but_in_fewer_rounds(make_cell, calls):
    slow, quick = make_cell(A, 4, 20.0), make_cell(B, 4, 1e-3)
    measure([slow, quick])
    assert (len(slow.rounds), len(quick.rounds)) == (3, ROUNDS)
    assert calls.count(("a", 4)) == 4  # one step to warm up, then one per round


def test_the_ratio_is_of_paired_rounds_with_the_t_interval_of_their_logarithms():
    cpu = DeviceCandidate("cpu", torch.device("cpu"), 1, "fp32")
    fast, slow = (TimedCell(cpu, 4, lambda steps: 0.0) for _ in range(2))
    fast.rounds, slow.rounds = [1.0, 2.0, 1.0], [2.0, 4.0, 4.0, 9.0]
    found = speed_ratio(fast, slow)
    mean, margin = 4 / 3 * math.log(2), 4.302653 * math.log(2) / 3  # by hand, of 2, 2 and 4
    assert found.ratio == pytest.approx(math.exp(mean))
    assert (found.low, found.high) == (
        pytest.approx(math.exp(mean - margin), rel=1e-4),
        pytest.approx(math.exp(mean + margin), rel=1e-4),
    )
