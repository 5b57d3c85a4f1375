"""Synthetic laws: the gain is known, so the interval's promise can be counted."""

import json

import numpy as np
import pytest

from onsight.evaluation.learning_curve import fit_learning_curve
from onsight.features.choose_head import LearningCurvePoint

SIZES = (100, 200, 400, 800)


def point(images, correct, evaluated):
    return LearningCurvePoint(images, round(correct), evaluated)


def draw(error, images, rng, sizes=SIZES):
    return [point(n, images - rng.binomial(images, error(n)), images) for n in sizes]


def exact(error, sizes=SIZES):
    return [point(n, (1 - error(n)) * 10**9, 10**9) for n in sizes]


def test_an_exact_power_law_is_found():
    curve = fit_learning_curve(exact(lambda n: 2 * n**-0.35))
    assert curve["exponent"] == pytest.approx(0.35, abs=1e-4)
    assert curve["factor"] == pytest.approx(2, rel=1e-3)
    assert curve["gain"] == pytest.approx(2 * (800**-0.35 - 1600**-0.35), rel=1e-4)
    assert [row["train_images"] for row in curve["points"]] == list(SIZES)
    json.dumps(curve)


def test_the_fit_is_scipys_weighted_least_squares():
    from scipy.optimize import curve_fit

    rng = np.random.default_rng(3)
    points = draw(lambda n: 2 * n**-0.35, 500, rng)
    errors = np.array([(500 - p.correct + 0.5) / 501 for p in points])
    line, _ = curve_fit(
        lambda x, height, slope: height + slope * x,
        np.log(SIZES),
        np.log(errors),
        sigma=np.sqrt((1 - errors) / (errors * 500)),
    )
    assert fit_learning_curve(points)["exponent"] == pytest.approx(-line[1], rel=1e-6)


@pytest.mark.parametrize(
    "error",
    [
        lambda n: 2 * n**-0.35,
        lambda n: 3 * n**-0.9,
        lambda n: 0.1 + 2 * n**-0.5,  # levels off, which a power law does not know
    ],
)
def test_the_interval_covers_the_gain(error):
    rng = np.random.default_rng(0)
    truth = error(800) - error(1600)
    curves = [fit_learning_curve(draw(error, 1000, rng)) for _ in range(200)]
    estimates = [curve for curve in curves if curve]
    assert len(estimates) > 150
    hits = sum(curve["gain_low"] <= truth <= curve["gain_high"] for curve in estimates)
    assert hits / len(estimates) > 0.93


def test_an_error_that_does_not_decrease_gives_no_estimate():
    rng = np.random.default_rng(0)
    claims = sum(fit_learning_curve(draw(lambda n: 0.3, 400, rng)) is not None for _ in range(300))
    assert claims / 300 < 0.06
    assert fit_learning_curve(exact(lambda n: 0.01 * n**0.3)) is None


def test_points_that_do_not_follow_a_power_law_give_no_estimate():
    law = exact(lambda n: 2 * n**-0.35)
    assert fit_learning_curve([]) is None
    assert fit_learning_curve(law[:2]) is None
    assert fit_learning_curve(exact(lambda n: 2 * n**-0.35, (100, 150, 200))) is None
    assert fit_learning_curve([point(n, 0, 0) for n in SIZES]) is None
    jagged = [
        point(n, accuracy * 1000, 1000)
        for n, accuracy in zip(SIZES, (0.5, 0.9, 0.5, 0.9), strict=True)
    ]
    assert fit_learning_curve(jagged) is None


def test_twice_the_images_at_most_halve_the_error():
    curve = fit_learning_curve(exact(lambda n: 50 * n**-1.3))
    assert curve["exponent"] == 1
    assert curve["gain"] == pytest.approx(25 * 800**-1.3, rel=1e-2)
    assert curve["gain_high"] <= 50 * 800**-1.3


def test_the_gain_cannot_exceed_the_errors_that_are_left():
    points = exact(lambda n: 2 * n**-0.35)
    assert fit_learning_curve(points, 1.0) is None
    assert fit_learning_curve(points, None) == fit_learning_curve(points)
    curve = fit_learning_curve(points, 0.99)
    assert curve["gain_low"] <= curve["gain"] <= curve["gain_high"] <= 0.01 + 1e-9


def test_no_mistakes_do_not_mean_an_error_of_zero():
    points = [point(n, a * 200, 200) for n, a in zip(SIZES, (0.9, 0.95, 0.99, 1.0), strict=True)]
    curve = fit_learning_curve(points)
    assert curve is None or 0 <= curve["gain_low"] <= curve["gain"] <= curve["gain_high"] < 0.02
