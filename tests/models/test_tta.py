"""Oracle: numpy, one image and one view at a time."""

import numpy as np
import pytest
import torch

from onsight.errors import ConfigError
from onsight.models.classifier import VIEWS, TtaForward

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randint(0, 256, (5, 6, 7, 2), dtype=torch.uint8, generator=GENERATOR)
WEIGHTS = torch.randn(6 * 7 * 2, 4, generator=GENERATOR, dtype=torch.float64) * 0.003


def forward(images):
    return images.flatten(1).double() @ WEIGHTS


def expected(image, name):
    """Mean probabilities (K,) over the views of one image, in float64."""
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="reflect")
    shifts = (0,) if name == "flip" else (-1, 0, 1)
    views = []
    for shift in shifts:
        moved = padded[1 - shift : 7 - shift, 1 - shift : 8 - shift]
        mirror = np.pad(image[:, ::-1], ((1, 1), (1, 1), (0, 0)), mode="reflect")
        views += [moved, mirror[1 - shift : 7 - shift, 1 - shift : 8 - shift]]
    logits = np.stack([view.reshape(-1) @ WEIGHTS.numpy() for view in views])
    shares = np.exp(logits - logits.max(1, keepdims=True))
    return (shares / shares.sum(1, keepdims=True)).mean(0)


@pytest.mark.parametrize("name", VIEWS)
def test_it_is_the_mean_of_the_probabilities_of_the_views(name):
    found = TtaForward(forward, name)(IMAGES).exp()
    by_hand = np.stack([expected(image, name) for image in IMAGES.numpy()])
    assert np.allclose(found.numpy(), by_hand, atol=1e-9)
    assert not np.allclose(forward(IMAGES).softmax(1).numpy(), by_hand, atol=1e-3)


@pytest.mark.parametrize("name", VIEWS)
def test_a_image_does_not_depend_on_others(name):
    together = TtaForward(forward, name)(IMAGES)
    alone = [TtaForward(forward, name)(IMAGES[place : place + 1]) for place in range(5)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-9)


def test_certainty_beyond_float32_stays_finite():
    def sure(images):
        return torch.tensor([[1000.0, -1000.0]]).expand(len(images), 2)

    assert TtaForward(sure, "flip-shift")(IMAGES).isfinite().all()


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(ConfigError, match="There are: none, flip, flip-shift"):
        TtaForward(forward, "five")
