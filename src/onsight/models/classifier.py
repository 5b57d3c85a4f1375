"""A network with its preprocessing: the forward pass shared by evaluation and prediction."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from onsight.data.normalization import Normalization
from onsight.hardware.reproducible import deterministic

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Classifier:
    """Maps uint8 pictures (B, H, W, C) to float32 logits (B, K), in evaluation mode.

    The network's own logits are divided by temperature, so that softmax gives probabilities that
    can be trusted.
    """

    def __init__(
        self,
        net: nn.Module,
        normalization: Normalization,
        precision: str,
        device: torch.device,
        temperature: float = 1.0,
    ) -> None:
        self.net = net
        self.normalization = normalization
        self.precision = precision
        self.device = device
        self.temperature = temperature

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """The logits of a batch, computed on the classifier's device."""
        self.net.eval()
        inputs = self.normalization.apply(images.to(self.device))
        with deterministic(), autocast(self.precision, self.device):
            logits: Tensor = self.net(inputs)
        return logits.float() / self.temperature


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """A precision's arithmetic, as a context manager."""
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()
