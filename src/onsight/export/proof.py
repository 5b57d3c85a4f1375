"""Whether an exported file says what the model says: all held-out images go through both."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onsight.data.loader import Batch
from onsight.errors import NotProven
from onsight.evaluation.statistics import PairedCounts, difference_interval
from onsight.export.format import Classify
from onsight.export.speed import Speed

LARGEST_DIFFERENCE = 1e-3
"""Of a probability, in fp32: labels can then differ only where two classes are within twice that.

Two correct runtimes add up in different orders and are about 1e-6 apart; a wrong resize, channel
order or mean is off by far more.
"""


@dataclass(frozen=True)
class Proof:
    """The model in torch, in fp32, beside the exported file, on n held-out images.

    agree: images with the same label; largest_difference: of any probability; right: images
    that both, only torch, only the file, and neither classified right.
    """

    images: int
    agree: int
    largest_difference: float
    right: PairedCounts
    speeds: tuple[Speed, ...] = ()

    @property
    def loss(self) -> tuple[float, float, float]:
        """The accuracy lost by the export, and the ends of its paired 95% interval."""
        return (self.right.difference, *difference_interval(self.right))

    def facts(self) -> dict[str, Any]:
        """Plain values for a file."""
        counts = self.right
        loss, low, high = self.loss
        return {
            "images": self.images,
            "agree": self.agree,
            "largest_difference": self.largest_difference,
            "accuracy": (counts.both_right + counts.only_second) / counts.n,
            "accuracy_in_torch": (counts.both_right + counts.only_first) / counts.n,
            "accuracy_lost": loss,
            "accuracy_lost_low": low,
            "accuracy_lost_high": high,
            "right": counts._asdict(),
            "speeds": [speed._asdict() for speed in self.speeds],
        }


def compare(
    in_torch: Classify,
    exported: Classify,
    batches: Iterable[Batch],
    progress: Callable[[int], None],
) -> Proof:
    """Classify every image in both ways; there must be at least one."""
    first, second, differences, rights = [], [], [0.0], []
    for batch in batches:
        images, labels = batch.images.numpy(), batch.labels.numpy()
        one, other = in_torch(images), exported(images)
        differences.append(float(np.abs(one - other).max()))
        first.append(one.argmax(1))
        second.append(other.argmax(1))
        rights.append((first[-1] == labels, second[-1] == labels))
        progress(len(labels))
    labelled = [np.concatenate(column) for column in zip(*rights, strict=True)]
    return Proof(
        images=len(labelled[0]),
        agree=int((np.concatenate(first) == np.concatenate(second)).sum()),
        largest_difference=float(np.max(differences)),  # NaN if there is one
        right=PairedCounts.of(labelled[0], labelled[1]),
    )


def check_difference(proof: Proof, to: str) -> None:
    """Raise NotProven if any probability differs by more than LARGEST_DIFFERENCE."""
    if not proof.largest_difference <= LARGEST_DIFFERENCE:  # NaN fails too
        raise NotProven(
            f"the export to {to} is refused, and nothing was written: probabilities differ from "
            f"torch's by up to {proof.largest_difference:.2g} (at most {LARGEST_DIFFERENCE:g} is "
            f"allowed), and {proof.agree:,} of {proof.images:,} labels agree"
        )


def check_loss(proof: Proof, max_loss: float) -> None:
    """Raise NotProven if it is not shown that at most max_loss points of accuracy are lost."""
    loss, low, high = (100 * share for share in proof.loss)
    if not high <= max_loss:
        raise NotProven(
            f"the export in int8 is refused, and nothing was written: it costs {loss:.2f} points "
            f"of accuracy (95% interval {low:.2f} to {high:.2f}, n = {proof.images:,}), and it "
            f"must be shown to cost at most {max_loss:g}. More held-out images (--on DATA) "
            f"narrow the interval; --max-loss {math.ceil(10 * high) / 10:g} would accept it"
        )
