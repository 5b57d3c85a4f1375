"""What more images would bring: a power law through trainings on fewer of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.evaluation.intervals import Z_95, wilson
from onsight.evaluation.results import LearningCurve, LearningCurvePoint

_LEAST_POINTS = 3
_LEAST_RANGE = 3.0  # times as many images in the largest training as in the smallest
_STEEPEST = 1.0  # exponent: twice the images, half the error
_WORST_FIT = 4.0  # chi-squared per degree of freedom; a power law beyond it is none
_FLOORS = 50  # errors tried below which more images would not help
_CHI_SQUARED_95 = 3.84  # of one degree of freedom


class AfterTraining(NamedTuple):
    """The accuracy after training on train_images images, judged by images others."""

    train_images: int
    accuracy: float
    images: int


def learning_curve(trained: Sequence[AfterTraining]) -> LearningCurve | None:
    """What to expect of twice the images; None where these trainings do not support a claim.

    error = factor * n ** -exponent is fitted by least squares of the logarithms, each weighted by
    its binomial variance; the low end also allows for errors that level off. There is no claim
    from fewer than 3 sizes, or sizes less than 3-fold apart, from points that follow no such law,
    or if the error may not fall at all.
    """
    points = sorted(one for one in trained if one.train_images > 0 and one.images > 0)
    sizes = [one.train_images for one in points]
    if len(set(sizes)) < _LEAST_POINTS or sizes[-1] < _LEAST_RANGE * sizes[0]:
        return None
    # Half a mistake more keeps the logarithm finite where there was none.
    errors = np.array([(_mistakes(one) + 0.5) / (one.images + 1) for one in points])
    variances = errors * (1 - errors) / [one.images for one in points]
    law = _fit(np.array(sizes), errors, variances)
    if law.excess > _WORST_FIT or law.exponent <= Z_95 * law.covariance[1, 1] ** 0.5:
        return None
    spread = Z_95 * _gain_deviation(law)
    least = min(law.gain * (1 - spread), _least_gain(np.array(sizes), errors, variances))
    return LearningCurve(
        points=[_point(one) for one in points],
        exponent=law.exponent,
        factor=law.error * sizes[-1] ** law.exponent,
        gain=law.gain,
        gain_low=max(0.0, least),
        gain_high=min(law.gain * math.exp(spread), law.error),
    )


@dataclass(frozen=True)
class _Law:
    """A fitted power law; error: at the largest training; excess: chi-squared by freedom.

    covariance: (2, 2) of the logarithm of that error and the slope.
    """

    error: float
    exponent: float
    covariance: NDArray[np.floating[Any]]
    chi_squared: float
    excess: float

    @property
    def gain(self) -> float:
        """How much lower the error is with twice the images."""
        return self.error * (1 - 2**-self.exponent)


def _fit(
    sizes: NDArray[np.int64], errors: NDArray[np.float64], variances: NDArray[np.float64]
) -> _Law:
    """The weighted least-squares line through the logarithms."""
    design = np.stack([np.ones(len(sizes)), np.log(sizes / sizes[-1])], axis=1)
    weights = errors**2 / variances  # of logarithms
    covariance = np.linalg.inv(design.T @ (design * weights[:, None]))
    height, slope = (covariance @ (design.T @ (weights * np.log(errors)))).tolist()
    missed = np.log(errors) - design @ [height, slope]
    chi_squared = float((weights * missed**2).sum())
    excess = chi_squared / (len(sizes) - 2)
    exponent = min(max(-slope, 0.0), _STEEPEST)
    return _Law(math.exp(height), exponent, covariance * max(1.0, excess), chi_squared, excess)


def _gain_deviation(law: _Law) -> float:
    """The standard deviation of the gain, relative to it."""
    gradient = np.array([1.0, math.log(2) / (1 - 2**law.exponent)])  # of its logarithm
    return math.sqrt(gradient @ law.covariance @ gradient)


def _least_gain(
    sizes: NDArray[np.int64], errors: NDArray[np.float64], variances: NDArray[np.float64]
) -> float:
    """The least gain of those laws with a floor, as errors often have, that fit as well."""
    floors = np.linspace(0, errors.min(), _FLOORS, endpoint=False)
    laws = [_fit(sizes, errors - floor, variances) for floor in floors]
    likely = min(law.chi_squared for law in laws) + _CHI_SQUARED_95
    return min(law.gain for law in laws if law.chi_squared <= likely)


def _mistakes(one: AfterTraining) -> int:
    return round((1 - one.accuracy) * one.images)


def _point(one: AfterTraining) -> LearningCurvePoint:
    low, high = wilson(one.images - _mistakes(one), one.images)
    return LearningCurvePoint(
        train_images=one.train_images,
        images=one.images,
        accuracy=one.accuracy,
        accuracy_low=low,
        accuracy_high=high,
    )
