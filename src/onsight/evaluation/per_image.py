"""What a model predicted for every image of a split."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.loader import Batch

BATCH_SIZE = 256
# Small batches of larger images keep a CPU's activations in its caches, as for features.
_LARGER, _CPU_BATCH = 96 * 96, 16  # pixels, images

_TOP = 5


def evaluation_batch(device: torch.device, size: tuple[int, int]) -> int:
    """How many images of this (height, width) all evaluation and prediction take at once.

    Equal batches give equal bits.
    """
    height, width = size
    is_larger = height * width >= _LARGER
    return _CPU_BATCH if device.type == "cpu" and is_larger else BATCH_SIZE


@dataclass(frozen=True)
class PerImageResults:
    """One entry per image, in order: everything that results are computed from.

    ids, labels, predicted: int64 (n,); confidence: the predicted class's probability;
    losses: cross-entropy; in_top5: bool (n,), all False for 5 classes or fewer; raw_confidence:
    the confidence without the temperature; unlike: the score of images unlike anything seen in
    training, NaN where it is not known.
    """

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float32]
    losses: NDArray[np.float32]
    in_top5: NDArray[np.bool_]
    raw_confidence: NDArray[np.float32]
    out_of_distribution: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)


@torch.inference_mode()
def evaluate_batches(
    forward: Callable[[Tensor], Tensor], batches: Iterable[Batch], temperature: float = 1.0
) -> PerImageResults:
    """Run a model over batches. forward: uint8 (B, H, W, C) to logits (B, K).

    temperature: what forward has divided its logits by. Entries are kept per image, so the
    batches make no difference to the results.
    """
    parts = [_observe_batch(forward(batch.images).float(), batch, temperature) for batch in batches]
    columns = [torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)]
    return PerImageResults(*columns) if columns else _nothing()


def _observe_batch(logits: Tensor, batch: Batch, temperature: float) -> tuple[Tensor, ...]:
    labels = batch.labels.to(logits.device)
    probabilities = logits.softmax(dim=1)
    confidence, predicted = probabilities.max(dim=1)
    losses = F.cross_entropy(logits, labels, reduction="none")
    if logits.shape[1] > _TOP:
        in_top5 = (logits.topk(_TOP, dim=1).indices == labels.unsqueeze(1)).any(dim=1)
    else:
        in_top5 = torch.zeros_like(labels, dtype=torch.bool)
    raw = confidence
    if temperature != 1:
        raw = (logits * temperature).softmax(dim=1).amax(dim=1)
    unknown = torch.full_like(losses, math.nan)
    return batch.ids, labels, predicted, confidence, losses, in_top5, raw, unknown


def _nothing() -> PerImageResults:
    empty = np.zeros(0, np.int64)
    floats = np.zeros(0, np.float32)
    return PerImageResults(empty, empty, empty, floats, floats, np.zeros(0, bool), floats, floats)
