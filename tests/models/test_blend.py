"""A blend of networks of different input sizes. Oracle: the sum of probabilities in float64."""

import numpy as np
import pytest
import torch

from onsight.data.normalization import Normalization
from onsight.features.feature_pass import logits_and_features
from onsight.models.blend import Blend, blend_logits
from onsight.models.catalog import make_model
from onsight.models.classifier import Classifier

CPU = torch.device("cpu")
PACKED = (12, 12)
WEIGHTS = {"small": 0.5, "large": 0.3, "half": 0.2}


def make_images(count, seed=0):
    """Images of coarse squares: uint8 (n, 12, 12, 1)."""
    generator = torch.Generator().manual_seed(seed)
    squares = torch.randint(0, 256, (count, 4, 4, 1), generator=generator).byte()
    return squares.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)


def make_member(name, size, precision="fp32", seed=0):
    torch.manual_seed(seed)
    net = make_model(name, (1, *(size or PACKED)), 5)
    normalization = Normalization((0.4 + seed / 10,), (0.2,), size)
    with torch.no_grad():
        for part in range(20):
            net(normalization.apply(make_images(32, part)))  # norms have statistics now
        net.head.weight.mul_(10)
    return Classifier(net, normalization, precision, CPU, temperature=3.0)


@pytest.fixture(scope="module")
def blend():
    members = {
        "small": make_member("compact", None),
        "large": make_member("compact", (20, 24), seed=1),
        "half": make_member("compact", (8, 8), "bf16", seed=2),
    }
    return Blend(members, WEIGHTS, "large", temperature=1.7)


@pytest.fixture
def images():
    return make_images(9, seed=99)


def softmax(logits):
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def expected_probabilities(blend, images):
    """The sum of the members' probabilities, each at its own temperature."""
    total = 0
    for name, member in blend.members.items():
        logits = member.raw_logits(images).double().numpy() / member.temperature
        total = total + WEIGHTS[name] * softmax(logits)
    return softmax(np.log(total) / blend.temperature)


def test_probabilities_are_those_of_the_weighted_mean(blend, images):
    found = blend(images)
    assert found.dtype == torch.float32
    assert np.allclose(found.softmax(1).numpy(), expected_probabilities(blend, images), atol=1e-6)
    assert len(set(found.argmax(1).tolist())) > 1


def test_extreme_logits_stay_finite():
    certain, other = torch.tensor([[300.0, -300.0]]), torch.tensor([[-1e4, 1e4]])
    found = blend_logits([certain, other], [0.25, 0.75])
    assert found.exp()[0].tolist() == pytest.approx([0.25, 0.75])


def test_one_network_is_its_own_member(blend, images):
    alone = blend.members["half"]
    assert list(alone.members.values()) == [alone]
    assert list(alone.weights.values()) == [1]
    assert alone.feature_member is alone
    assert torch.equal(alone(images), alone.raw_logits(images) / 3)


def test_features_are_those_of_the_feature_member(blend, images):
    assert blend.feature_member is blend.members["large"]
    logits, features = logits_and_features(blend, images)
    assert torch.equal(logits, blend(images))
    assert torch.equal(features, logits_and_features(blend.members["large"], images)[1])


def test_a_member_that_runs_out_of_memory_halves_its_own_batches(blend, images):
    class Crowded(torch.nn.Module):
        """A network with memory for two images."""

        def forward(self, inputs):
            if len(inputs) > 2:
                raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
            return inputs.flatten(1)[:, :5]

    members = dict(blend.members)
    members["small"] = Classifier(Crowded(), Normalization((0.4,), (0.2,)), "fp32", CPU)
    crowded = Blend(members, WEIGHTS, "large")
    expected = members["small"].normalization.apply(images).flatten(1)[:, :5]
    found, features = logits_and_features(crowded, images)
    assert len(features) == len(images)
    others = [members[name](images) for name in ("large", "half")]
    assert torch.allclose(found, blend_logits([expected, *others], WEIGHTS.values()), atol=1e-5)


def test_batches_are_chosen_for_the_largest_input(blend):
    assert blend.input_size(PACKED) == (20, 24)
    assert blend.members["small"].input_size(PACKED) == PACKED
