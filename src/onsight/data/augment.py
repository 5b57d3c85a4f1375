"""Augmentation of training batches, as a function of the seed, the epoch and the image.

B batch, C channels, H height, W width, K classes.
"""

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from onsight.data.augmentation_ops import Cutout, Geometry, Jitter, Mix, Numbers
from onsight.data.normalization import Normalization
from onsight.randomness import uniform

_Op = Geometry | Jitter | Cutout
# In the order of application.
_PIXEL_OPS: tuple[type[Any], ...] = (Geometry, Jitter)  # on images (B, H, W, C)
_INPUT_OPS: tuple[type[Any], ...] = (Cutout,)  # on normalized images (B, C, H, W)

SETTINGS = {field.name for kind in (*_PIXEL_OPS, *_INPUT_OPS, Mix) for field in fields(kind)}


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of training images.

    Attributes:
        pixel_ops: Operations on images (B, H, W, C).
        input_ops: Operations on normalised images (B, C, H, W).
        mix: Mixes images of a batch.
    """

    pixel_ops: tuple[_Op, ...]
    input_ops: tuple[_Op, ...]
    mix: Mix

    @classmethod
    def of(cls, **settings: Any) -> "Augmentation":
        """Make an augmentation from some of SETTINGS; the others are off.

        Raises:
            TypeError: If there is no such setting.
        """
        if unknown := settings.keys() - SETTINGS:
            raise TypeError(f"no augmentation setting is called {', '.join(sorted(unknown))}")

        def make(kind: type[Any]) -> Any:
            names = {field.name for field in fields(kind)}
            return kind(**{name: value for name, value in settings.items() if name in names})

        return cls(
            tuple(op for op in map(make, _PIXEL_OPS) if op.columns),
            tuple(op for op in map(make, _INPUT_OPS) if op.columns),
            make(Mix),
        )

    @property
    def mixes(self) -> bool:
        """Whether images are mixed, so that targets are probabilities of classes."""
        return bool(self.mix.columns)

    @property
    def columns(self) -> list[int]:
        """The columns of random numbers that each image needs."""
        columns = [column for op in (*self.pixel_ops, *self.input_ops) for column in op.columns]
        return [*columns, *self.mix.columns]

    def draw_numbers(self, seed: int, epoch: int, ids: Tensor) -> Numbers:
        """Draw the random numbers for images, by column. ids: image numbers, int64 (B,)."""
        columns = self.columns
        if not columns:
            return {}
        drawn = uniform(seed, epoch, ids, columns)
        return dict(zip(columns, drawn.unbind(1), strict=True))

    def augment_images(
        self, images: Tensor, numbers: Numbers, normalization: Normalization
    ) -> Tensor:
        """Augment and normalize images (B, H, W, C), without mixing: float (B, C, H, W)."""
        for op in self.pixel_ops:
            images = op.apply(images, numbers)
        inputs = normalization.apply(images)
        for op in self.input_ops:
            inputs = op.apply(inputs, numbers)
        return inputs

    def mix_batch(
        self, inputs: Tensor, labels: Tensor, numbers: Numbers, classes: int
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of a batch, each image mixed with the next if that is on.

        Targets are labels (B,). If images are mixed they are shares of classes (B - 1, K), as the
        last image serves only as the partner of the one before.
        """
        if not self.mixes:
            return inputs, labels
        return self.mix.apply(inputs, labels, numbers, classes)
