"""Evaluation where memory runs out. Oracle: the same network with room for every batch."""

import pytest
import torch
from torch import nn

from onsight.data.loader import Images, Loader
from onsight.data.normalization import Normalization
from onsight.evaluation.predictions import evaluate_batches
from onsight.features.feature_pass import logits_and_features
from onsight.models.classifier import Classifier

CPU = torch.device("cpu")


class Room(nn.Module):
    """A network with memory for this many images; `tried` are the sizes of its batches."""

    def __init__(self, images):
        super().__init__()
        torch.manual_seed(0)
        self.flatten, self.head = nn.Flatten(), nn.Linear(12, 7)
        self.images, self.tried = images, []

    def forward(self, inputs):
        self.tried.append(len(inputs))
        if len(inputs) > self.images:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
        return self.head(self.flatten(inputs))


def make_classifier(room):
    return Classifier(Room(room), Normalization((0.5,) * 3, (0.5,) * 3), "fp32", CPU)


def make_images(count):
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (count, 12), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.arange(count), torch.arange(count) % 7, (2, 2, 3))


@pytest.mark.parametrize(
    ("room", "tried"),
    [(5, [16, 8, 4, 4, 4, 4, 4, 4, 4, 4, 3]), (1, [16, 8, 4, 2, *[1] * 35])],
)
def test_a_batch_that_does_not_fit_is_halved_and_its_results_stay_in_order(room, tried):
    images = make_images(35)
    loader = Loader(images, torch.arange(35), 16, CPU)
    classifier = make_classifier(room)
    found, expected = (
        evaluate_batches(model, loader.in_order()) for model in (classifier, make_classifier(35))
    )
    assert found.ids.tolist() == list(range(35))
    assert found.predicted.tolist() == expected.predicted.tolist()
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    assert classifier.net.tried == tried


def test_memory_that_does_not_hold_one_image_is_an_error_in_evaluation():
    classifier = make_classifier(0)
    with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
        classifier(make_images(4).gather(torch.arange(4)).images)
    assert classifier.net.tried == [4, 2, 1]


def test_another_error_is_not_retried():
    classifier = make_classifier(9)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        classifier(torch.zeros(4, 3, 3, 3, dtype=torch.uint8))
    assert classifier.net.tried == [4]


def test_features_stay_complete_when_a_batch_is_halved():
    images = make_images(10).gather(torch.arange(10)).images
    (logits, features), (whole_logits, whole) = (
        logits_and_features(make_classifier(room), images) for room in (3, 10)
    )
    assert torch.equal(features, whole)
    assert torch.allclose(logits, whole_logits)
