"""Predicts every image of a split. All metrics are computed from these predictions.

B batch, H height, W width, C channels, K classes, n images.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.loader import Batch

BATCH_SIZE = 256
# On a CPU, small batches of large images keep the activations in its caches.
_LARGE_PIXELS, _CPU_BATCH_SIZE = 96 * 96, 16
_TOP = 5


def evaluation_batch_size(device: torch.device, size: tuple[int, int]) -> int:
    """Return the batch size of all evaluations and predictions of (height, width) images.

    It is the same everywhere, because only equal batches give bit-identical results.
    """
    height, width = size
    is_large = height * width >= _LARGE_PIXELS
    return _CPU_BATCH_SIZE if device.type == "cpu" and is_large else BATCH_SIZE


@dataclass(frozen=True)
class PredictionTable:
    """The predictions of images, as columns (n,)."""

    ids: NDArray[np.int64]  # image numbers
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float32]  # probabilities of the predicted classes
    losses: NDArray[np.float32]  # cross-entropy losses
    # True if the label is among the 5 most probable classes; all False for 5 classes or fewer.
    in_top5: NDArray[np.bool_]
    raw_confidence: NDArray[np.float32]  # confidence before temperature scaling
    # Out-of-distribution scores, NaN if the model has no detector.
    out_of_distribution: NDArray[np.float32]
    logits: NDArray[np.float32]  # logits before temperature scaling, (n, K)

    def __len__(self) -> int:
        return len(self.ids)


def concatenate_tables(tables: Sequence[PredictionTable]) -> PredictionTable:
    """Concatenate tables, and sort the rows by image number."""
    parts = [vars(table) for table in tables]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["ids"])
    return PredictionTable(**{name: values[order] for name, values in columns.items()})


@dataclass(frozen=True)
class HeldOutLogits:
    """The logits of images that a network has not learned from."""

    ids: Tensor  # image numbers, int64 (n,)
    logits: Tensor  # logits before temperature scaling, (n, K)
    labels: Tensor  # labels, int64 (n,)

    def take(self, rows: Tensor) -> "HeldOutLogits":
        """Return some rows, by position or as flags."""
        return HeldOutLogits(self.ids[rows], self.logits[rows], self.labels[rows])

    def tabulate(self, temperature: float = 1.0) -> PredictionTable:
        """Return the predictions at a temperature."""
        if not len(self.ids):
            return _empty_table()
        columns = _evaluate_batch(self.logits / temperature, self.labels, self.ids, temperature)
        return PredictionTable(*(column.numpy() for column in columns))


def held_out_logits(table: PredictionTable) -> HeldOutLogits:
    """Return the logits of the images in a table."""
    ids, logits, labels = (torch.from_numpy(c) for c in (table.ids, table.logits, table.labels))
    return HeldOutLogits(ids, logits, labels)


def take_common(held_out: Mapping[str, HeldOutLogits]) -> dict[str, HeldOutLogits]:
    """Return the rows of the images that all networks have, in the same order."""
    common = set.intersection(*(set(rows.ids.tolist()) for rows in held_out.values()))
    ids = torch.tensor(sorted(common), dtype=torch.int64)
    return {name: _take_ids(rows, ids) for name, rows in held_out.items()}


def _take_ids(rows: HeldOutLogits, ids: Tensor) -> HeldOutLogits:
    order = rows.ids.argsort()
    return rows.take(order[torch.searchsorted(rows.ids[order], ids)])


@torch.inference_mode()
def evaluate_batches(
    forward: Callable[[Tensor], Tensor], batches: Iterable[Batch], temperature: float = 1.0
) -> PredictionTable:
    """Predict the images of all batches.

    Args:
        forward: Maps uint8 (B, H, W, C) to logits (B, K) that are divided by the temperature.
    """
    parts = [
        _evaluate_batch(forward(batch.images).float(), batch.labels, batch.ids, temperature)
        for batch in batches
    ]
    columns = [torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)]
    return PredictionTable(*columns) if columns else _empty_table()


def _evaluate_batch(
    logits: Tensor, labels: Tensor, ids: Tensor, temperature: float
) -> tuple[Tensor, ...]:
    labels = labels.to(logits.device)
    probabilities = logits.softmax(dim=1)
    confidence, predicted = probabilities.max(dim=1)
    losses = F.cross_entropy(logits, labels, reduction="none")
    if logits.shape[1] > _TOP:
        in_top5 = (logits.topk(_TOP, dim=1).indices == labels.unsqueeze(1)).any(dim=1)
    else:
        in_top5 = torch.zeros_like(labels, dtype=torch.bool)
    raw, raw_logits = confidence, logits
    if temperature != 1:
        raw_logits = logits * temperature
        raw = raw_logits.softmax(dim=1).amax(dim=1)
    no_score = torch.full_like(losses, math.nan)
    return ids, labels, predicted, confidence, losses, in_top5, raw, no_score, raw_logits


def _empty_table() -> PredictionTable:
    ints = np.zeros(0, np.int64)
    floats = np.zeros(0, np.float32)
    none, no_logits = np.zeros(0, bool), np.zeros((0, 0), np.float32)
    return PredictionTable(ints, ints, ints, floats, floats, none, floats, floats, no_logits)
