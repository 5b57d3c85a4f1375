"""The predictions of a model for every image of a split, from which all metrics are computed."""

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
# On a CPU, small batches of larger images keep the activations in its caches.
_LARGER_PIXELS, _CPU_BATCH_SIZE = 96 * 96, 16
_TOP = 5


def evaluation_batch_size(device: torch.device, size: tuple[int, int]) -> int:
    """Return the batch size of every evaluation and prediction of (height, width) images.

    It is the same everywhere, because equal batches give bit-identical results.
    """
    height, width = size
    is_larger = height * width >= _LARGER_PIXELS
    return _CPU_BATCH_SIZE if device.type == "cpu" and is_larger else BATCH_SIZE


@dataclass(frozen=True)
class PredictionTable:
    """One entry per image, in order."""

    ids: NDArray[np.int64]  # (n,), as all columns
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float32]  # probability of the predicted class
    losses: NDArray[np.float32]  # cross-entropy
    in_top5: NDArray[np.bool_]  # all False for 5 classes or fewer
    raw_confidence: NDArray[np.float32]  # the confidence before temperature scaling
    out_of_distribution: NDArray[np.float32]  # score, NaN if the model has no detector

    def __len__(self) -> int:
        return len(self.ids)


@torch.inference_mode()
def evaluate_batches(
    forward: Callable[[Tensor], Tensor], batches: Iterable[Batch], temperature: float = 1.0
) -> PredictionTable:
    """Run a model over batches.

    forward: from uint8 (B, H, W, C) to logits (B, K), which it has divided by the temperature.
    Results are per image, so they do not depend on how images are divided into batches.
    """
    parts = [
        _evaluate_batch(forward(batch.images).float(), batch, temperature) for batch in batches
    ]
    columns = [torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)]
    return PredictionTable(*columns) if columns else _empty_table()


def _evaluate_batch(logits: Tensor, batch: Batch, temperature: float) -> tuple[Tensor, ...]:
    """Return the columns of a PredictionTable for a batch."""
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
    no_score = torch.full_like(losses, math.nan)
    return batch.ids, labels, predicted, confidence, losses, in_top5, raw, no_score


def _empty_table() -> PredictionTable:
    ints = np.zeros(0, np.int64)
    floats = np.zeros(0, np.float32)
    return PredictionTable(ints, ints, ints, floats, floats, np.zeros(0, bool), floats, floats)
