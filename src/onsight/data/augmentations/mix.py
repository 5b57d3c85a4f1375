"""mixup and cutmix: each image is mixed with the next one of its batch.

B batch, C channels, H height, W width, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.data.augmentations.op import Numbers
from onsight.data.transforms import box
from onsight_explain.devices import has_float64

TRIES = 16  # Jöhnk's rejection accepts at least half of them for alpha <= 1
MIX_KIND, MIX_Y, MIX_X = 13, 14, 15
_TRIED = range(16, 16 + 2 * TRIES)


@dataclass(frozen=True)
class Mix:
    """mixup (Zhang et al., arXiv:1710.09412), cutmix (Yun et al., arXiv:1905.04899), or either.

    The fields are the alphas of their Beta distributions; with both, each image draws which.
    """

    mixup: float = 0.0
    cutmix: float = 0.0

    @property
    def columns(self) -> Sequence[int]:
        """The columns it needs; none when it is off."""
        return (MIX_KIND, MIX_Y, MIX_X, *_TRIED) if self.mixup or self.cutmix else ()

    def apply(
        self, inputs: Tensor, labels: Tensor, numbers: Numbers, classes: int
    ) -> tuple[Tensor, Tensor]:
        """Normalised images (B - 1, C, H, W) and targets (B - 1, K); the last is only a partner.

        inputs: (B, C, H, W); labels: int64 (B,).
        """
        partners, partner_labels = inputs[1:], labels[1:]
        inputs, labels = inputs[:-1], labels[:-1]
        numbers = {column: values[:-1] for column, values in numbers.items()}
        tries = torch.stack([numbers[column] for column in _TRIED], dim=1)
        blended_share = beta(tries, self.mixup or 1.0)
        blended = torch.lerp(partners, inputs, blended_share.view(-1, 1, 1, 1))
        box_share = (1 - beta(tries, self.cutmix or 1.0)).sqrt()
        boxes = box(numbers[MIX_Y], numbers[MIX_X], box_share, *inputs.shape[2:])
        pasted = torch.where(boxes, partners, inputs)
        pasted_share = 1.0 - boxes.float().mean(dim=(1, 2, 3))
        cut = self._is_cut(numbers[MIX_KIND])
        mixed = torch.where(cut.view(-1, 1, 1, 1), pasted, blended)
        share = torch.where(cut, pasted_share, blended_share)
        return mixed, _soft_targets(labels, partner_labels, share, classes)

    def _is_cut(self, numbers: Tensor) -> Tensor:
        """Which images get cutmix rather than mixup: bool (B,)."""
        if self.mixup > 0 and self.cutmix > 0:
            return numbers < 0.5
        return torch.full_like(numbers, self.cutmix > 0, dtype=torch.bool)


def beta(numbers: Tensor, alpha: float) -> Tensor:
    """Beta(alpha, alpha) variates (B,) from uniform numbers (B, 2 n), alpha at most 1.

    The first of n tries that Jöhnk's rejection (Metrika 8, 1964) accepts.
    """
    exact = numbers if has_float64(numbers.device) else numbers.cpu()
    first, second = (exact.double() + 1e-9).pow(1 / alpha).chunk(2, dim=1)
    total = first + second
    accepted = (total <= 1) & (total > 0)
    chosen = accepted.int().argmax(dim=1, keepdim=True)
    share = (first / total.clamp(min=1e-300)).gather(1, chosen).squeeze(1).float()
    return share.to(numbers.device)


def _soft_targets(labels: Tensor, partner_labels: Tensor, share: Tensor, classes: int) -> Tensor:
    """Targets (B, K): a share (B,) for each image's own label, the rest for its partner's."""
    own = F.one_hot(labels, classes).float()
    other = F.one_hot(partner_labels, classes).float()
    return torch.lerp(other, own, share.unsqueeze(1))
