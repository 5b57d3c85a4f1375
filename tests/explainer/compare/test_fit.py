"""Oracles: planted costs, and SciPy's non-negative least squares."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from onsight.explainer.step_costs import StepCosts, find_crossover, fit_costs

SIZES = (4, 32, 128, 512)
costs = st.floats(1e-7, 1e-1)


@given(costs, costs)
def test_planted_costs_are_recovered(fixed, image):
    fit = fit_costs({size: fixed + image * size for size in SIZES})
    assert fit.fixed_seconds == pytest.approx(fixed, rel=1e-6, abs=1e-9 * image * 4)
    assert fit.image_seconds == pytest.approx(image, rel=1e-6, abs=1e-9 * fixed / 512)
    assert fit.max_error == pytest.approx(0, abs=1e-9)
    assert fit.step_seconds(64) == pytest.approx(fixed + 64 * image)


@pytest.mark.parametrize(
    ("seconds", "zero"),
    [((1.0, 9.0, 40.0, 170.0), "fixed"), ((4.0, 3.0, 2.0, 1.0), "image"), ((2, 3, 9, 8), "")],
)
def test_no_cost_is_negative_and_the_fit_is_optimal(seconds, zero):
    fit = fit_costs(dict(zip(SIZES, seconds, strict=True)))
    times = np.array(seconds, float)
    matrix = np.stack([1 / times, np.array(SIZES) / times], axis=1)
    expected, _ = nnls(matrix, np.ones(4))
    assert (fit.fixed_seconds, fit.image_seconds) == pytest.approx(tuple(expected), abs=1e-12)
    assert fit.max_error == pytest.approx(np.abs(matrix @ expected - 1).max())
    for name in ("fixed", "image"):
        assert (getattr(fit, f"{name}_seconds") == 0) == (name == zero)


def test_a_single_size_gives_no_fit():
    assert fit_costs({4: 0.1}) is None
    assert fit_costs({}) is None


def test_the_crossover_is_the_first_batch_size_at_which_the_second_is_faster():
    cpu, gpu = StepCosts(0.12e-3, 14e-6, 0), StepCosts(0.61e-3, 1.2e-6, 0)
    expected = next(n for n in range(4, 513) if gpu.step_seconds(n) < cpu.step_seconds(n))
    assert find_crossover(cpu, gpu, 4, 512) == expected
    assert math.isclose(expected, 39, abs_tol=0)


@pytest.mark.parametrize("sizes", [(4, 38), (39, 512), (64, 512)])
def test_no_crossover_outside_the_measured_range(sizes):
    cpu, gpu = StepCosts(0.12e-3, 14e-6, 0), StepCosts(0.61e-3, 1.2e-6, 0)
    assert find_crossover(cpu, gpu, *sizes) is None


def test_no_crossover_if_one_is_always_faster():
    slow, fast = StepCosts(2e-3, 2e-6, 0), StepCosts(1e-3, 1e-6, 0)
    assert find_crossover(slow, fast, 4, 512) is None
    assert find_crossover(fast, slow, 4, 512) is None
    assert find_crossover(fast, fast, 4, 512) is None
