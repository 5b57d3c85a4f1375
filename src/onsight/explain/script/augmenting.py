"""A data set's random transforms taken out of its items, to be applied to whole batches."""

from collections.abc import Callable
from typing import Any

_BY_CHANCE = ("Random", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix", "ColorJitter")
_ALSO_BY_CHANCE = ("GaussianBlur", "ElasticTransform", "GaussianNoise")
_MARGIN = 8 / 7  # of the side, kept around random crops


def move_to_batches(dataset: Any) -> Callable[[Any], Any] | None:
    """Leave a data set's items the fixed transforms only; what to do to a batch instead.

    None, and nothing changed, where the data set has no torchvision Compose with random
    transforms before the conversion to tensors.
    """
    steps = getattr(getattr(dataset, "transform", None), "transforms", None)
    if not steps:
        return None
    at = next((i for i, one in enumerate(steps) if "ToTensor" in type(one).__name__), None)
    if at is None:
        at = next((i for i, one in enumerate(steps) if "ToImage" in type(one).__name__), None)
    if at is None or not any(_is_random(one) for one in steps[:at]):
        return None
    first = next(i for i, one in enumerate(steps) if _is_random(one))
    moved = [*steps[first:at], *steps[at + 1 :]]
    dataset.transform = _Chain([*steps[:first], *_room(steps[first:at]), steps[at]])
    return _Chain(moved)


class _Chain:
    def __init__(self, steps: list[Callable[[Any], Any]]) -> None:
        self.steps = steps

    def __call__(self, value: Any) -> Any:
        for step in self.steps:
            value = step(value)
        return value


def _is_random(step: Any) -> bool:
    name = type(step).__name__
    return name.startswith(_BY_CHANCE) or name in _ALSO_BY_CHANCE


def _room(steps: list[Any]) -> list[Callable[[Any], Any]]:
    """Pictures of one size, where the first crop would have made them so."""
    from torchvision.transforms import Resize

    sizes = [one.size for one in steps if "ResizedCrop" in type(one).__name__]
    return [Resize([round(side * _MARGIN) for side in sizes[0]])] if sizes else []
