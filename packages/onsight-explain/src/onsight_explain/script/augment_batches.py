"""Move random transforms from a dataset's items to whole batches."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from onsight_explain.script import batched
from onsight_explain.script.batched import to_float
from onsight_explain.script.trace import MovedSteps

BatchStep = partial[Any]

_RANDOM_PREFIXES = (
    *("Random", "AutoAugment", "RandAugment", "TrivialAugment"),
    *("AugMix", "ColorJitter"),
)
_RANDOM_NAMES = ("GaussianBlur", "ElasticTransform", "GaussianNoise")
_CONVERSIONS = {"ToTensor", "ToImage", "PILToTensor"}
_MARGIN = 8 / 7  # items are stored at this many times the side of a random crop


class Chain:
    """Applies several transforms in order."""

    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        """Return the transformed value."""
        for transform in self.transforms:
            value = transform(value)
        return value


@dataclass(frozen=True)
class BatchTransform:
    """The transforms that were left out of the items, to be applied to whole batches."""

    change: Chain
    shared: list[str]  # transforms that use the same random numbers for the whole batch

    def __call__(self, batch: Any) -> Any:
        """Return the batch with its first part, the images, transformed."""
        if isinstance(batch, list | tuple):
            return [self.change(batch[0]), *batch[1:]]
        return self.change(batch)


def move_to_batches(dataset: Any) -> tuple[Chain, BatchTransform] | None:
    """Split a dataset's transform: what stays in the items, and what to do to a batch.

    Returns None if the dataset has no torchvision Compose with random transforms and a conversion
    to tensors.
    """
    steps = transforms_of(dataset)
    if not can_move([type(step).__name__ for step in steps]):
        return None
    first, conversions, later = _split(steps)
    pairs = [(step, batch_version(step)) for step in later]
    shared = [type(step).__name__ for step, batch in pairs if batch is None and _draws(step)]
    change = Chain([batch or step for step, batch in pairs])
    return Chain([*steps[:first], *conversions]), BatchTransform(change, shared)


def moved_steps(dataset: Any) -> MovedSteps | None:
    """Describe as code what `move_to_batches` returns.

    In the code, `self.steps` are the transforms of the Compose.
    """
    steps = transforms_of(dataset)
    if not can_move([type(step).__name__ for step in steps]):
        return None
    first, conversions, later = _split(steps)
    return MovedSteps(
        kept=[*range(first)],
        conversions=[_step_code(step, steps) for step in conversions],
        changes=[_batch_code(step, steps) for step in later],
    )


def can_move(names: list[str]) -> bool:
    """Return whether transforms with these names can be moved to batches."""
    return any(map(is_random, names)) and not _CONVERSIONS.isdisjoint(names)


def split_at_random(dataset: Any) -> tuple[Chain, Chain | None] | None:
    """Split a dataset's transform before its first random step; None if it has no Compose.

    The second part is None if no step is random.
    """
    steps = transforms_of(dataset)
    first = _first(steps, _draws)
    later = Chain(steps[first:]) if steps[first:] else None
    return (Chain(steps[:first]), later) if steps else None


def transforms_of(dataset: Any) -> list[Any]:
    """Return the transforms in a dataset's Compose; an empty list if it has no Compose."""
    return list(getattr(getattr(dataset, "transform", None), "transforms", ()))


def is_random(name: str) -> bool:
    """Return whether a torchvision transform of this name uses random numbers."""
    return name.startswith(_RANDOM_PREFIXES) or name in _RANDOM_NAMES


def batch_version(step: Any) -> BatchStep | None:
    """Return a version of torchvision's transform with random numbers per image of a batch.

    None if there is no such version of it.
    """
    make = _MAKERS.get(type(step).__name__)
    return make(step) if make and type(step).__module__.startswith("torchvision.") else None


def _split(steps: list[Any]) -> tuple[int, list[Any], list[Any]]:
    """Return how many leading transforms stay in the items, what follows them there, and the rest.

    The rest is applied to batches.
    """
    first, conversion_at = _first(steps, _draws), _first(steps, _makes_tensors)
    if conversion_at < first:
        return first, [], steps[first:]
    conversion, rest = _split_conversion(steps[conversion_at])
    return (
        first,
        [*_resize_with_margin(steps[first:conversion_at]), conversion],
        [*steps[first:conversion_at], *rest, *steps[conversion_at + 1 :]],
    )


def _split_conversion(step: Any) -> tuple[Any, list[Any]]:
    """Return a conversion to tensors that keeps bytes, and what remains to be done to batches."""
    if type(step).__name__ != "ToTensor":
        return step, []
    from torchvision.transforms import PILToTensor

    return PILToTensor(), [to_float]


def _resize_with_margin(steps: list[Any]) -> list[Callable[[Any], Any]]:
    """Return a resize to one size, if the moved transforms include the crop that ensured it."""
    from torchvision.transforms import Resize

    sizes = [step.size for step in steps if "ResizedCrop" in type(step).__name__]
    return [Resize([round(side * _MARGIN) for side in sizes[0]])] if sizes else []


def _step_code(step: Any, steps: list[Any]) -> str:
    """Return a transform of the items as code: one from the Compose, or a new one."""
    for index, known in enumerate(steps):
        if known is step:
            return f"self.steps[{index}]"
    size = f"{list(step.size)}" if type(step).__name__ == "Resize" else ""
    return f"torchvision.transforms.{type(step).__name__}({size})"


def _batch_code(step: Any, steps: list[Any]) -> str:
    """Return, as code, what is done to a batch called `images`."""
    if step is to_float:
        return "to_float(images)"
    batch = batch_version(step)
    if batch is None:
        return f"{_step_code(step, steps)}(images)"
    values = ", ".join(f"{name}={value!r}" for name, value in batch.keywords.items())
    return f"{batch.func.__name__}(images, {values})"


def _first(steps: list[Any], matches: Callable[[Any], bool]) -> int:
    return next((index for index, step in enumerate(steps) if matches(step)), len(steps))


def _makes_tensors(step: Any) -> bool:
    return type(step).__name__ in _CONVERSIONS


def _draws(step: Any) -> bool:
    return is_random(type(step).__name__)


def _crop(step: Any) -> BatchStep | None:
    padding = _sides(step.padding)
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}
    mode = modes.get(step.padding_mode)
    if padding is None or mode is None or step.pad_if_needed or not _is_black(step.fill):
        return None
    return partial(batched.random_crop, size=tuple(step.size), padding=padding, mode=mode)


def _resized_crop(step: Any) -> BatchStep | None:
    if _mode(step) not in ("bilinear", "bicubic"):
        return None
    size, scale, ratio = tuple(step.size), tuple(step.scale), tuple(step.ratio)
    return partial(batched.random_resized_crop, size=size, scale=scale, ratio=ratio)


def _affine(step: Any) -> BatchStep | None:
    """Convert RandomAffine, or RandomRotation, which neither shifts nor scales."""
    mode, settings = _mode(step), vars(step)
    has_more = any(settings.get(name) for name in ("shear", "center", "expand"))
    if has_more or mode not in ("nearest", "bilinear") or not _is_black(step.fill):
        return None
    return partial(
        batched.random_affine,
        degrees=tuple(step.degrees),
        translate=tuple(settings.get("translate") or (0.0, 0.0)),
        scale=tuple(settings.get("scale") or (1.0, 1.0)),
        mode=mode,
    )


def _jitter(step: Any) -> BatchStep | None:
    if step.hue:
        return None
    brightness, contrast, saturation = (
        tuple(limits or (1.0, 1.0)) for limits in (step.brightness, step.contrast, step.saturation)
    )
    return partial(
        batched.color_jitter, brightness=brightness, contrast=contrast, saturation=saturation
    )


def _blur(step: Any) -> BatchStep:
    kernel_size, sigma = tuple(step.kernel_size), tuple(step.sigma)
    return partial(batched.gaussian_blur, kernel_size=kernel_size, sigma=sigma)


def _erasing(step: Any) -> BatchStep | None:
    if step.value not in (0, [0]):
        return None
    return partial(
        batched.random_erasing, p=step.p, scale=tuple(step.scale), ratio=tuple(step.ratio)
    )


def _sides(padding: Any) -> tuple[int, int, int, int] | None:
    """Return torchvision's padding as left, right, top, bottom."""
    match padding:
        case None:
            return 0, 0, 0, 0
        case int(every):
            return every, every, every, every
        case [horizontal, vertical]:
            return horizontal, horizontal, vertical, vertical
        case [left, top, right, bottom]:
            return left, right, top, bottom
    return None


def _mode(step: Any) -> str:
    """Return the name of an interpolation, which some transforms store as a string."""
    return str(getattr(step.interpolation, "value", step.interpolation)).lower()


def _is_black(fill: Any) -> bool:
    """Return whether pixels outside an image become 0."""
    values = fill.values() if isinstance(fill, dict) else [fill]
    return all(value is None or value == 0 for value in values)


_MAKERS: dict[str, Callable[[Any], BatchStep | None]] = {
    "RandomHorizontalFlip": lambda step: partial(batched.random_flip, p=step.p, dim=-1),
    "RandomVerticalFlip": lambda step: partial(batched.random_flip, p=step.p, dim=-2),
    "RandomCrop": _crop,
    "RandomResizedCrop": _resized_crop,
    "RandomAffine": _affine,
    "RandomRotation": _affine,
    "ColorJitter": _jitter,
    "GaussianBlur": _blur,
    "RandomGrayscale": lambda step: partial(batched.random_greyscale, p=step.p),
    "RandomErasing": _erasing,
}
