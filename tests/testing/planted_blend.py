"""A blend of three networks, and its probabilities as a plain sum in float64."""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from onsight.features.feature_pass import logits_and_features
from onsight.models.build import build_classifier
from onsight.models.catalog import make_model
from onsight.models.file import BlendFile
from onsight.models.head import find_head
from onsight.models.out_of_distribution import OutOfDistributionDetector, score

CPU = torch.device("cpu")
WEIGHTS = {"own": 0.5, "large": 0.3, "small": 0.2}
TEMPERATURE = 1.7


def plant_blend(file):
    """A BlendFile of a trained network, one with a larger and one with a smaller input.

    The two others are random, with a norm of their own and large weights in their last layer.
    """
    packed = file.format.height, file.format.width
    large = packed[0] + 7, packed[1] + 4
    members = {
        "own": replace(file, temperature=0.8, out_of_distribution=None),
        "large": make_member(file, "compact", large, 1),
        "small": make_member(file, "quick", (packed[0] - 4, packed[1] - 3), 2),
    }
    return BlendFile(
        members=members,
        member_weights=WEIGHTS,
        feature_member="own",
        results=file.results,
        provenance=file.provenance,
        seen=file.seen,
        temperature=TEMPERATURE,
        out_of_distribution=plant_detector(file),
    )


def plant_detector(file):
    """A detector that has seen other images of noise, and flags some of them."""
    classifier = build_classifier(file, CPU)
    features = logits_and_features(classifier, draw_images(file.format, count=30, seed=1))[1]
    bank = F.normalize(features, dim=1).half()
    threshold = float(score(features, bank).median())
    return OutOfDistributionDetector(bank, threshold, false_alarm_rate=0.01, images=99)


def make_member(file, model, size, seed):
    """A model file with another input size."""
    target = file.format.for_input(size)
    inputs = {"input_size": target.input_size, "decoded_for": target.decoded_for}
    inputs |= {"mean": (0.1 * seed,) * file.preprocessing.channels}
    preprocessing = file.preprocessing.model_copy(update=inputs)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = make_model(model, preprocessing.input_shape, len(file.classes))
        draw = torch.rand(64, *preprocessing.input_shape)
        with torch.no_grad():
            net.train()(draw)
            find_head(net).weight.mul_(20)
    return replace(
        file,
        model=model,
        preprocessing=preprocessing,
        weights=dict(net.state_dict()),
        temperature=0.5 + seed,
        out_of_distribution=None,
        results={},
        weights_license="apache-2.0" if seed == 1 else None,
    )


def draw_images(size, count=20, seed=0):
    """Noise of different brightness: uint8 (n, H, W, C)."""
    draw = np.random.default_rng(seed)
    noise = draw.random((count, size.height, size.width, size.channels))
    levels = draw.random((count, 1, 1, size.channels))
    return torch.from_numpy((255 * noise * levels).astype(np.uint8))


def expected_probabilities(blend, images):
    """The weighted sum of the members' probabilities at the blend's temperature, (n, K).

    images: uint8 (n, H, W, C).
    """
    total = 0
    for name, file in blend.members.items():
        classifier = build_classifier(file, CPU)
        logits = classifier(images).double().numpy()
        total = total + blend.member_weights[name] * _softmax(logits)
    return _softmax(np.log(total) / blend.temperature)


def _softmax(logits):
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
