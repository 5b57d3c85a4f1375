"""The interface of an augmentation: which random numbers it needs, and a pure function of them."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

Numbers = dict[int, Tensor]  # the numbers in [0, 1) drawn for each column: float32 (B,)


class Op(Protocol):
    """A random change of images: a frozen dataclass whose fields are fields of the config.

    A number is a function of (seed, epoch, image, column), so no two ops may share a column
    and no column may ever change. There are 64; a test pins those that are taken.
    """

    @property
    def columns(self) -> Sequence[int]:
        """The columns it needs; none when it is off."""

    def apply(self, images: Tensor, numbers: Numbers) -> Tensor:
        """The changed images, a function of its arguments alone."""
