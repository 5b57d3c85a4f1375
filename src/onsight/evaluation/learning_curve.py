"""Estimates the gain from more training images by a power law fitted to smaller training runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsight.evaluation.results import LearningCurve, LearningCurveRow
from onsight.evaluation.statistics import Z_95, wilson
from onsight.features.choose_head import LearningCurvePoint

_MIN_POINTS = 3
_MIN_RANGE = 3.0  # ratio of the largest to the smallest number of training images
_MAX_EXPONENT = 1.0  # at which twice the images halve the error
_MAX_MISFIT = 4.0  # chi-squared per degree of freedom above which the power law is rejected
_FLOORS = 50  # irreducible errors to try
_CHI_SQUARED_95 = 3.84  # 95% quantile for one degree of freedom


def fit_learning_curve(
    runs: Sequence[LearningCurvePoint], accuracy: float | None = None
) -> LearningCurve | None:
    """Estimate the accuracy with twice the images.

    error = factor * n ** -exponent is fitted to the logarithms by least squares, weighted by their
    binomial variance. The lower bound also allows for errors that level off.

    Args:
        runs: Trainings on some of the images.
        accuracy: Of the training on all images, where it is known: the gain cannot exceed the
            errors that are left.

    Returns:
        The curve, or None if no errors are left, if there are fewer than 3 sizes, if they differ by
        less than a factor of 3, if the errors do not follow a power law, or if they do not clearly
        decrease.
    """
    points = sorted(point for point in runs if point.images > 0 and point.evaluated > 0)
    sizes = [point.images for point in points]
    left = 1.0 if accuracy is None else 1.0 - accuracy
    if left <= 0:
        return None
    if len(set(sizes)) < _MIN_POINTS or sizes[-1] < _MIN_RANGE * sizes[0]:
        return None
    # Half a mistake is added, so that the logarithm is finite even without mistakes.
    mistakes, evaluated = np.array([(n - correct, n) for _, correct, n in points]).T
    errors = (mistakes + 0.5) / (evaluated + 1)
    variances = errors * (1 - errors) / evaluated
    law = _fit(np.array(sizes), errors, variances)
    if law.misfit > _MAX_MISFIT or law.exponent <= Z_95 * law.covariance[1, 1] ** 0.5:
        return None
    spread = Z_95 * _relative_gain_deviation(law)
    with_floor = _min_gain_with_floor(np.array(sizes), errors, variances)
    return LearningCurve(
        points=[_make_row(point) for point in points],
        exponent=law.exponent,
        factor=law.error * sizes[-1] ** law.exponent,
        gain=min(law.gain, left),
        gain_low=max(0.0, min(law.gain * (1 - spread), with_floor, left)),
        gain_high=min(law.gain * math.exp(spread), law.error, left),
    )


@dataclass(frozen=True)
class _PowerLaw:
    """A fitted power law."""

    error: float  # error with the largest number of training images
    exponent: float  # exponent, from 0 to 1
    covariance: NDArray[np.floating[Any]]  # of the logarithm of that error and the slope, (2, 2)
    chi_squared: float  # of the residuals
    misfit: float  # chi_squared per degree of freedom

    @property
    def gain(self) -> float:
        """The decrease of the error with twice the images."""
        return self.error * (1 - 2**-self.exponent)


def _fit(
    sizes: NDArray[np.int64], errors: NDArray[np.float64], variances: NDArray[np.float64]
) -> _PowerLaw:
    """Fit the weighted least-squares line through the logarithms."""
    design = np.stack([np.ones(len(sizes)), np.log(sizes / sizes[-1])], axis=1)
    weights = errors**2 / variances  # weights of the logarithms
    covariance = np.linalg.inv(design.T @ (design * weights[:, None]))
    height, slope = (covariance @ (design.T @ (weights * np.log(errors)))).tolist()
    residuals = np.log(errors) - design @ [height, slope]
    chi_squared = float((weights * residuals**2).sum())
    misfit = chi_squared / (len(sizes) - 2)
    exponent = min(max(-slope, 0.0), _MAX_EXPONENT)
    scaled = covariance * max(1.0, misfit)
    return _PowerLaw(math.exp(height), exponent, scaled, chi_squared, misfit)


def _relative_gain_deviation(law: _PowerLaw) -> float:
    """Return the standard deviation of the gain, divided by the gain."""
    gradient = np.array([1.0, math.log(2) / (1 - 2**law.exponent)])  # of the gain's logarithm
    return math.sqrt(gradient @ law.covariance @ gradient)


def _min_gain_with_floor(
    sizes: NDArray[np.int64], errors: NDArray[np.float64], variances: NDArray[np.float64]
) -> float:
    """Return the smallest gain of the power laws with an irreducible error that fit well."""
    floors = np.linspace(0, errors.min(), _FLOORS, endpoint=False)
    laws = [_fit(sizes, errors - floor, variances) for floor in floors]
    max_chi_squared = min(law.chi_squared for law in laws) + _CHI_SQUARED_95
    return min(law.gain for law in laws if law.chi_squared <= max_chi_squared)


def _make_row(point: LearningCurvePoint) -> LearningCurveRow:
    low, high = wilson(point.correct, point.evaluated)
    return LearningCurveRow(
        train_images=point.images,
        images=point.evaluated,
        accuracy=point.correct / point.evaluated,
        accuracy_low=low,
        accuracy_high=high,
    )
