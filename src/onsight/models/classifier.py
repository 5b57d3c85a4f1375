"""A network with its preprocessing: the forward pass of evaluation and prediction.

B batch, H height, W width, C channels, K classes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from onsight.data.normalization import Normalization
from onsight.data.transforms import shift_and_flip
from onsight.errors import ConfigError
from onsight.hardware.reproducible import deterministic
from onsight.models.out_of_distribution import OutOfDistributionDetector
from onsight_explain.devices import is_out_of_memory, release_cached_memory

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

View = tuple[int, int, bool]  # (pixels down, pixels right, mirrored), shifted by at most 1 pixel

# Shifts are along one diagonal, as in Jordan, arXiv:2404.00498.
VIEWS: dict[str, Sequence[View]] = {
    "flip": [(0, 0, False), (0, 0, True)],
    "flip-shift": [(shift, shift, mirrored) for shift in (0, -1, 1) for mirrored in (False, True)],
}


class ImageClassifier(ABC):
    """Maps uint8 images (B, H, W, C) to float32 logits (B, K), in evaluation mode.

    Args:
        temperature: The divisor of the logits, which calibrates probabilities.
        out_of_distribution: The detector of out-of-distribution images, if any, which receives the
            features of the feature member.
    """

    def __init__(
        self,
        device: torch.device,
        temperature: float = 1.0,
        out_of_distribution: OutOfDistributionDetector | None = None,
    ) -> None:
        self.device = device
        self.temperature = temperature
        self.out_of_distribution = out_of_distribution and out_of_distribution.to(device)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits of a batch, divided by the temperature."""
        return self.raw_logits(images) / self.temperature

    @abstractmethod
    def raw_logits(self, images: Tensor) -> Tensor:
        """Return float32 logits (B, K) before they are divided by the temperature."""

    @property
    @abstractmethod
    def members(self) -> Mapping[str, "Classifier"]:
        """The classifiers that are blended, by name; for a single network, only itself."""

    @property
    @abstractmethod
    def weights(self) -> Mapping[str, float]:
        """How much each member counts, by name."""

    def input_size(self, packed: tuple[int, int]) -> tuple[int, int]:
        """Return the largest (height, width) that a network receives for images of a size."""
        sizes = [member.normalization.size or packed for member in self.members.values()]
        return max(sizes, key=math.prod)

    @property
    @abstractmethod
    def feature_member(self) -> "Classifier":
        """The member whose features `embed`, `similar` and the detector use."""


class Classifier(ImageClassifier):
    """An ImageClassifier of one network.

    Args:
        normalization: The conversion of images to the network's input.
        precision: One of PRECISIONS.
        temperature: The divisor of the network's logits, which calibrates probabilities.
        out_of_distribution: The detector of out-of-distribution images, if any.
    """

    def __init__(
        self,
        net: nn.Module,
        normalization: Normalization,
        precision: str,
        device: torch.device,
        temperature: float = 1.0,
        out_of_distribution: OutOfDistributionDetector | None = None,
    ) -> None:
        super().__init__(device, temperature, out_of_distribution)
        self.net = net
        self.normalization = normalization
        self.precision = precision
        self._max_images: int | None = None  # images per pass, set once memory has run out

    @property
    def members(self) -> Mapping[str, "Classifier"]:
        """Only itself, without a name."""
        return {"": self}

    @property
    def weights(self) -> Mapping[str, float]:
        """All the weight."""
        return {"": 1.0}

    @property
    def feature_member(self) -> "Classifier":
        """Itself."""
        return self

    @torch.inference_mode()
    def raw_logits(self, images: Tensor) -> Tensor:
        """Return the network's logits of a batch, computed on the classifier's device.

        Whenever memory runs out, this and all later batches are computed in smaller parts.
        """
        self.net.eval()
        parts: list[Tensor] = []
        rest = images
        while len(rest) or not parts:
            size = min(len(rest), self._max_images or len(rest))
            try:
                parts.append(self._forward(rest[:size]))
                rest = rest[size:]
                continue
            except RuntimeError as error:
                if not is_out_of_memory(error) or size <= 1:
                    raise
            self._max_images = size // 2  # outside `except`, where the error still holds memory
            release_cached_memory(self.device)
        return torch.cat(parts)

    def _forward(self, images: Tensor) -> Tensor:
        inputs = self.normalization.apply(images.to(self.device))
        with deterministic(), autocast(self.precision, self.device):
            logits: Tensor = self.net(inputs)
        return logits.float()


class TtaForward:
    """Test-time augmentation: averages the probabilities of several views of each image.

    Args:
        forward: Maps uint8 (B, H, W, C) to logits (B, K).
        name: One of VIEWS.

    Raises:
        ConfigError: If there are no views of this name.
    """

    def __init__(self, forward: Callable[[Tensor], Tensor], name: str) -> None:
        if name not in VIEWS:
            raise ConfigError(f"no views '{name}'. There are: none, {', '.join(VIEWS)}")
        self.forward = forward
        self.views = VIEWS[name]

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logarithms of the mean probabilities (B, K), to be used as logits."""
        logs = [self.forward(_transform(images, view)).log_softmax(dim=1) for view in self.views]
        return torch.stack(logs).logsumexp(dim=0) - math.log(len(logs))


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager that computes in a precision."""
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()


def _transform(images: Tensor, view: View) -> Tensor:
    count, device = len(images), images.device
    return shift_and_flip(images, *(torch.full((count,), value, device=device) for value in view))
