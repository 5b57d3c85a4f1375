"""A network with its preprocessing: the forward pass shared by evaluation and prediction."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from onsight.data.normalization import Normalization
from onsight.hardware.reproducible import deterministic
from onsight.models.out_of_distribution import OutOfDistributionDetector
from onsight_explain.devices import is_out_of_memory, release_cached_memory

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Classifier:
    """Maps uint8 images (B, H, W, C) to float32 logits (B, K), in evaluation mode.

    The network's own logits are divided by temperature, so that softmax gives probabilities that
    can be trusted. unlike: what tells images that are unlike anything seen in training.
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
        self.net = net
        self.normalization = normalization
        self.precision = precision
        self.device = device
        self.temperature = temperature
        self.out_of_distribution = out_of_distribution and out_of_distribution.to(device)
        self.at_once: int | None = None  # images, once memory has run out

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """The logits of a batch, computed on the classifier's device.

        When memory runs out, batches are computed in parts of half the size from then on.
        """
        self.net.eval()
        parts: list[Tensor] = []
        rest = images
        while len(rest) or not parts:
            size = min(len(rest), self.at_once or len(rest))
            try:
                parts.append(self._logits(rest[:size]))
                rest = rest[size:]
                continue
            except RuntimeError as error:
                if not is_out_of_memory(error) or size <= 1:
                    raise
            self.at_once = size // 2  # out here, where the error no longer holds any memory
            release_cached_memory(self.device)
        return torch.cat(parts)

    def _logits(self, images: Tensor) -> Tensor:
        inputs = self.normalization.apply(images.to(self.device))
        with deterministic(), autocast(self.precision, self.device):
            logits: Tensor = self.net(inputs)
        return logits.float() / self.temperature


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """A precision's arithmetic, as a context manager."""
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()
