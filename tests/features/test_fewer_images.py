"""Heads on parts of the images: each as if it had been fitted on them alone."""

import torch

from onsight.features.choose_head import measure_learning_curve, split_rounds
from onsight.features.heads import HeadSettings, LabelledFeatures


def clouds(count, seed):
    """Two overlapping clouds of points in 40 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (count,), generator=generator)
    points = torch.randn(1, count, 40, generator=generator) + 0.25 * labels[:, None]
    return LabelledFeatures(points, labels)


def test_each_point_is_a_head_fitted_on_that_part():
    train, validation = clouds(400, 1), clouds(2000, 2)
    settings = HeadSettings(0.01)
    found = measure_learning_curve([(train, validation)], settings, 2, None)
    assert [point.images for point in found] == [50, 100, 200, 400]
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    for point in found:
        head = settings.fit(train.take(order[: point.images]), 2)
        right = head(validation.views[0]).argmax(dim=1) == validation.labels
        assert (point.correct, point.evaluated) == (int(right.sum()), 2000)
    assert found[-1].correct > found[0].correct


def test_with_folds_every_image_judges_once():
    train, validation = clouds(60, 1), clouds(20, 2)
    found = measure_learning_curve(split_rounds(train, validation), HeadSettings(None), 2, None)
    assert [point.evaluated for point in found] == [80] * 4
    assert [point.images for point in found] == [8, 16, 32, 64]
