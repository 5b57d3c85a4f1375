"""torchvision's random transforms of one image, as functions of whole batches."""

from collections.abc import Callable
from functools import partial
from typing import Any

from onsight_explain.script import batched

BatchStep = partial[Any]


def of_batches(step: Any) -> BatchStep | None:
    """The same transform with numbers of its own for each image; None if it is not known."""
    made = _MAKERS.get(type(step).__name__)
    return made(step) if made and type(step).__module__.startswith("torchvision.") else None


def _horizontal(step: Any) -> BatchStep:
    return partial(batched.random_flip, p=step.p, dim=-1)


def _vertical(step: Any) -> BatchStep:
    return partial(batched.random_flip, p=step.p, dim=-2)


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
    mode = _mode(step)
    if step.shear or step.center or mode not in ("nearest", "bilinear"):
        return None
    if not _is_black(step.fill):
        return None
    return partial(
        batched.random_affine,
        degrees=tuple(step.degrees),
        translate=tuple(step.translate or (0.0, 0.0)),
        scale=tuple(step.scale or (1.0, 1.0)),
        mode=mode,
    )


def _rotation(step: Any) -> BatchStep | None:
    mode = _mode(step)
    if step.expand or step.center or mode not in ("nearest", "bilinear"):
        return None
    if not _is_black(step.fill):
        return None
    degrees, still = tuple(step.degrees), (0.0, 0.0)
    return partial(
        batched.random_affine, degrees=degrees, translate=still, scale=(1.0, 1.0), mode=mode
    )


def _jitter(step: Any) -> BatchStep | None:
    if step.hue:
        return None
    brightness, contrast, saturation = (
        tuple(one or (1.0, 1.0)) for one in (step.brightness, step.contrast, step.saturation)
    )
    return partial(
        batched.color_jitter, brightness=brightness, contrast=contrast, saturation=saturation
    )


def _blur(step: Any) -> BatchStep:
    across, down = step.kernel_size
    return partial(batched.gaussian_blur, kernel_size=(across, down), sigma=tuple(step.sigma))


def _greyscale(step: Any) -> BatchStep:
    return partial(batched.random_greyscale, p=step.p)


def _erasing(step: Any) -> BatchStep | None:
    if step.value not in (0, [0]):
        return None
    return partial(
        batched.random_erasing, p=step.p, scale=tuple(step.scale), ratio=tuple(step.ratio)
    )


def _sides(padding: Any) -> tuple[int, int, int, int] | None:
    """torchvision's padding as left, right, top, bottom."""
    match padding:
        case None:
            return 0, 0, 0, 0
        case int(every):
            return every, every, every, every
        case [across, down]:
            return across, across, down, down
        case [left, top, right, bottom]:
            return left, right, top, bottom
    return None


def _mode(step: Any) -> str:
    """The name of an interpolation, which some transforms keep as a word."""
    return str(getattr(step.interpolation, "value", step.interpolation)).lower()


def _is_black(fill: Any) -> bool:
    """Whether places outside an image become 0."""
    values = fill.values() if isinstance(fill, dict) else [fill]
    return all(one is None or one == 0 for one in values)


_MAKERS: dict[str, Callable[[Any], BatchStep | None]] = {
    "RandomHorizontalFlip": _horizontal,
    "RandomVerticalFlip": _vertical,
    "RandomCrop": _crop,
    "RandomResizedCrop": _resized_crop,
    "RandomAffine": _affine,
    "RandomRotation": _rotation,
    "ColorJitter": _jitter,
    "GaussianBlur": _blur,
    "RandomGrayscale": _greyscale,
    "RandomErasing": _erasing,
}
