"""A head with one hidden layer: for classes that no plane separates in the features."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.features.heads.labelled import LabelledFeatures
from onsight.features.heads.linear import LinearHead, Standardization
from onsight.models.head import HiddenHead

# Found on one kind of images (NOTEBOOK.md); half or twice of each changes little.
_UNITS = 512
_BATCH, _LEAST_EPOCHS, _LEAST_STEPS = 256, 20, 300
_RATE, _WEIGHT_DECAY = 2e-3, 1.0
_INPUT_DROPOUT, _DROPOUT = 0.25, 0.5


@dataclass(frozen=True)
class HiddenSettings:
    """A way to fit a head with a hidden layer. seed: of its first weights and of its batches."""

    seed: int

    def __str__(self) -> str:
        return f"one hidden layer of {_UNITS} units"

    def fit(
        self, data: LabelledFeatures, classes: int, class_weights: Tensor | None = None
    ) -> HiddenHead:
        """The head for plain features, a function of its arguments. class_weights: float (K,).

        Trained by AdamW; an epoch takes one view of each image, drawn at random.
        """
        flat = data.views.flatten(0, 1)
        scale = Standardization.of(flat)
        standard, count = scale.apply(flat), len(data)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(self.seed)
            head = HiddenHead(flat.shape[1], _UNITS, classes).to(flat.dtype)
            optimizer = torch.optim.AdamW(head.parameters(), lr=_RATE, weight_decay=_WEIGHT_DECAY)
            epochs, steps = _epochs(count), math.ceil(count / _BATCH)
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, _RATE, epochs=epochs, steps_per_epoch=steps
            )
            for _ in range(epochs):
                rows = torch.randint(len(data.views), (count,)) * count + torch.arange(count)
                for batch in rows[torch.randperm(count)].split(_BATCH):
                    labels = data.labels[batch % count]
                    logits = _with_dropout(head, standard[batch])
                    optimizer.zero_grad()
                    F.cross_entropy(logits, labels, class_weights).backward()
                    optimizer.step()
                    schedule.step()
        folded = scale.fold(LinearHead(head.first.weight.detach(), head.first.bias.detach()))
        head.first.weight.data, head.first.bias.data = folded.weight, folded.bias
        return head.requires_grad_(False).eval()


def fitting_operations(data: LabelledFeatures, classes: int) -> float:
    """Floating-point operations of fitting a head with a hidden layer: three passes of two each."""
    return 6.0 * _epochs(len(data)) * len(data) * _UNITS * (data.views.shape[-1] + classes)


def _epochs(count: int) -> int:
    return max(_LEAST_EPOCHS, math.ceil(_LEAST_STEPS / math.ceil(count / _BATCH)))


def _with_dropout(head: HiddenHead, features: Tensor) -> Tensor:
    inputs = F.dropout(features, _INPUT_DROPOUT)
    logits: Tensor = head.last(F.dropout(F.gelu(head.first(inputs)), _DROPOUT))
    return logits
