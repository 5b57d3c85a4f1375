"""Takes the random transforms out of a data set's items, to be applied later."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onsight_explain.script.batched import to_float
from onsight_explain.script.batching import of_batches
from onsight_explain.script.trace import MovedSteps

_BY_CHANCE = ("Random", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix", "ColorJitter")
_ALSO_BY_CHANCE = ("GaussianBlur", "ElasticTransform", "GaussianNoise")
_CONVERSIONS = ("ToTensor", "ToImage", "PILToTensor")
_MARGIN = 8 / 7  # times the side of a random crop: what is kept of an image


class Chain:
    """Applies several transforms, one after the other."""

    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        """The transformed value."""
        for transform in self.transforms:
            value = transform(value)
        return value


@dataclass(frozen=True)
class Moved:
    """What is left to do to batches. shared: transforms that draw one number for a whole batch."""

    change: Chain
    shared: list[str]

    def __call__(self, batch: Any) -> Any:
        """The batch with its first part, which is its images, transformed."""
        if isinstance(batch, list | tuple):
            return [self.change(batch[0]), *batch[1:]]
        return self.change(batch)


def move_to_batches(dataset: Any) -> Moved | None:
    """Leave only the fixed transforms in a data set's items; returns what to do to a batch.

    Returns None and changes nothing if the data set has no torchvision Compose with random
    transforms and a conversion to tensors.
    """
    steps = transforms_of(dataset)
    if not can_move([type(one).__name__ for one in steps]):
        return None
    first, conversions, later = _apart(steps)
    dataset.transform = Chain([*steps[:first], *conversions])
    known = [(one, of_batches(one)) for one in later]
    shared = [type(one).__name__ for one, batch in known if batch is None and _draws(one)]
    return Moved(Chain([batch or one for one, batch in known]), shared)


def moved_steps(dataset: Any) -> MovedSteps | None:
    """The same as code, which changes nothing; `self.steps` are the transforms of the Compose."""
    steps = transforms_of(dataset)
    if not can_move([type(one).__name__ for one in steps]):
        return None
    first, conversions, later = _apart(steps)
    return MovedSteps(
        kept=[*range(first)],
        conversions=[_code(one, steps) for one in conversions],
        changes=[_call(one, steps) for one in later],
    )


def _apart(steps: list[Any]) -> tuple[int, list[Any], list[Any]]:
    """How many transforms make the kept items, what follows them there, and what batches need."""
    first, at = _first(steps, _draws), _first(steps, _makes_tensors)
    if at < first:
        return first, [], steps[first:]
    conversion, rest = _converted(steps[at])
    return (
        first,
        [*_room(steps[first:at]), conversion],
        [*steps[first:at], *rest, *steps[at + 1 :]],
    )


def _code(step: Any, steps: list[Any]) -> str:
    """A transform of the kept items: one of the Compose, or a new one of torchvision."""
    for place, one in enumerate(steps):
        if one is step:
            return f"self.steps[{place}]"
    size = f"{list(step.size)}" if type(step).__name__ == "Resize" else ""
    return f"torchvision.transforms.{type(step).__name__}({size})"


def _call(step: Any, steps: list[Any]) -> str:
    """What becomes of a batch called images."""
    if step is to_float:
        return "to_float(images)"
    batch = of_batches(step)
    if batch is None:
        return f"{_code(step, steps)}(images)"
    values = ", ".join(f"{name}={value!r}" for name, value in batch.keywords.items())
    return f"{batch.func.__name__}(images, {values})"


def can_move(names: list[str]) -> bool:
    """Whether transforms with these names can be moved to batches."""
    return any(is_random(one) for one in names) and any(_converts(one) for one in names)


def leave_fixed(dataset: Any) -> Chain | None:
    """Leave only the transforms before the first random one in the items; returns the others.

    Returns None and changes nothing if the data set has no Compose.
    """
    steps = transforms_of(dataset)
    if not steps:
        return None
    first = _first(steps, _draws)
    dataset.transform = Chain(steps[:first])
    return Chain(steps[first:])


def transforms_of(dataset: Any) -> list[Any]:
    """The list in a data set's Compose; empty without one."""
    return list(getattr(getattr(dataset, "transform", None), "transforms", ()))


def _converted(step: Any) -> tuple[Any, list[Any]]:
    """A conversion to tensors that keeps bytes, and what is then left to do to batches."""
    if type(step).__name__ != "ToTensor":
        return step, []
    from torchvision.transforms import PILToTensor

    return PILToTensor(), [to_float]


def _first(steps: list[Any], is_such: Callable[[Any], bool]) -> int:
    return next((place for place, one in enumerate(steps) if is_such(one)), len(steps))


def _makes_tensors(step: Any) -> bool:
    return _converts(type(step).__name__)


def _converts(name: str) -> bool:
    return name in _CONVERSIONS


def _draws(step: Any) -> bool:
    return is_random(type(step).__name__)


def is_random(name: str) -> bool:
    """Whether a torchvision transform of this name draws random numbers."""
    return name.startswith(_BY_CHANCE) or name in _ALSO_BY_CHANCE


def _room(steps: list[Any]) -> list[Callable[[Any], Any]]:
    """A resize to one size, if the moved transforms include the crop that did that."""
    from torchvision.transforms import Resize

    sizes = [one.size for one in steps if "ResizedCrop" in type(one).__name__]
    return [Resize([round(side * _MARGIN) for side in sizes[0]])] if sizes else []
