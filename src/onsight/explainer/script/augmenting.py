"""Takes the random transforms out of a data set's items, to be applied later."""

from collections.abc import Callable
from typing import Any

_BY_CHANCE = ("Random", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix", "ColorJitter")
_ALSO_BY_CHANCE = ("GaussianBlur", "ElasticTransform", "GaussianNoise")
_MARGIN = 8 / 7  # times the side of a random crop: what is kept of a picture


def move_to_batches(dataset: Any) -> Callable[[Any], Any] | None:
    """Leave only the fixed transforms in a data set's items; returns what to do to a batch.

    Returns None and changes nothing if the data set has no torchvision Compose with random
    transforms before the conversion to tensors.
    """
    steps = _steps(dataset)
    at = next((i for i, one in enumerate(steps) if _makes_tensors(one)), len(steps))
    first = _first_random(steps)
    if first >= at or at == len(steps):
        return None
    moved = [*steps[first:at], *steps[at + 1 :]]
    dataset.transform = Chain([*steps[:first], *_room(steps[first:at]), steps[at]])
    return Chain(moved)


def leave_fixed(dataset: Any) -> Callable[[Any], Any] | None:
    """Leave only the transforms before the first random one in the items; returns the others.

    Returns None and changes nothing if the data set has no Compose.
    """
    steps = _steps(dataset)
    if not steps:
        return None
    first = _first_random(steps)
    dataset.transform = Chain(steps[:first])
    return Chain(steps[first:])


class Chain:
    """Applies several transforms, one after the other."""

    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        """The transformed value."""
        for transform in self.transforms:
            value = transform(value)
        return value


def _steps(dataset: Any) -> list[Any]:
    return list(getattr(getattr(dataset, "transform", None), "transforms", ()))


def _makes_tensors(step: Any) -> bool:
    return any(word in type(step).__name__ for word in ("ToTensor", "ToImage"))


def _first_random(steps: list[Any]) -> int:
    return next((i for i, one in enumerate(steps) if is_random(type(one).__name__)), len(steps))


def is_random(name: str) -> bool:
    """Whether a torchvision transform of this name draws random numbers."""
    return name.startswith(_BY_CHANCE) or name in _ALSO_BY_CHANCE


def _room(steps: list[Any]) -> list[Callable[[Any], Any]]:
    """A resize to one size, if the moved transforms include the crop that did that."""
    from torchvision.transforms import Resize

    sizes = [one.size for one in steps if "ResizedCrop" in type(one).__name__]
    return [Resize([round(side * _MARGIN) for side in sizes[0]])] if sizes else []
