"""A blend: the weighted mean of the probabilities of several networks.

B batch, H height, W width, C channels, K classes.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from onsight.models.classifier import Classifier, ImageClassifier
from onsight.models.out_of_distribution import OutOfDistributionDetector


class Blend(ImageClassifier):
    """An ImageClassifier that averages the probabilities of its members.

    Each member converts the images to its own input size, computes in its own precision, halves
    its own batches if memory runs out, and has its own temperature, without which one that is too
    sure of itself would count too much.

    Args:
        members: The classifiers by name, on one device.
        weights: How much each member counts, by name; above 0, with a sum of 1.
        feature_name: The name of the feature member.
        temperature: The divisor of the blended logits.
        out_of_distribution: A detector on the features of the feature member, if any.
    """

    def __init__(
        self,
        members: Mapping[str, Classifier],
        weights: Mapping[str, float],
        feature_name: str,
        temperature: float = 1.0,
        out_of_distribution: OutOfDistributionDetector | None = None,
    ) -> None:
        super().__init__(members[feature_name].device, temperature, out_of_distribution)
        self._members = dict(members)
        self._weights = {name: weights[name] for name in members}
        self._feature_name = feature_name

    @property
    def members(self) -> Mapping[str, Classifier]:
        """The classifiers by name."""
        return self._members

    @property
    def weights(self) -> Mapping[str, float]:
        """How much each member counts, by name, in the order of the members."""
        return self._weights

    @property
    def feature_member(self) -> Classifier:
        """The member whose features `embed`, `similar` and the detector use."""
        return self._members[self._feature_name]

    @torch.inference_mode()
    def raw_logits(self, images: Tensor) -> Tensor:
        """Return the logarithms of the mean probabilities, (B, K)."""
        images = images.to(self.device)
        logits = [member(images) for member in self._members.values()]
        return blend_logits(logits, self._weights.values())


def blend_logits(logits: Iterable[Tensor], weights: Iterable[float]) -> Tensor:
    """Return the logarithms of the weighted mean of probabilities, float32 (B, K).

    Uses plain tensor operations only, for exported graphs.

    Args:
        logits: The logits of each member, (B, K).
        weights: The weight of each member, above 0.
    """
    logs = [
        values.float().log_softmax(dim=1) + math.log(weight)
        for values, weight in zip(logits, weights, strict=True)
    ]
    return torch.stack(logs).logsumexp(dim=0)
