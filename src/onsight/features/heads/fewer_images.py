"""How good a head is with fewer images: what its learning curve is drawn through."""

from typing import NamedTuple

import torch
from torch import Tensor

from onsight.features.heads.choose import HeadSettings, Round
from onsight.features.heads.hidden import HiddenSettings

_SHARES = (0.125, 0.25, 0.5, 1.0)


class WithFewer(NamedTuple):
    """How many of the judged images a head got right that was fitted on so many."""

    images: int
    right: int
    judged: int


def right_with_fewer(
    rounds: list[Round],
    settings: HeadSettings | HiddenSettings,
    classes: int,
    class_weights: Tensor | None,
) -> list[WithFewer]:
    """Fit a head of these settings on growing parts of the images of each round, and judge it."""
    found = []
    for share in _SHARES:
        images = right = judged = 0
        for fitted, judges in rounds:
            order = torch.randperm(len(fitted), generator=torch.Generator().manual_seed(0))
            some = fitted.take(order[: max(1, int(share * len(fitted)))])
            logits: Tensor = settings.fit(some, classes, class_weights)(judges.views[0])
            images += len(some)
            right += int((logits.argmax(dim=1) == judges.labels).sum())
            judged += len(judges)
        found.append(WithFewer(images // len(rounds), right, judged))
    return found
