"""Images that are hard to learn from: blank, dark, blurred, tiny, oddly shaped, out of style.

n images, B batch, H height, W width, C channels.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onsight.audit.finding import Finding
from onsight.audit.subject import Subject

_BATCH = 1024
_BLANK = 4.0  # grey levels of standard deviation; below, hardly anything is to be seen
_DARK, _BRIGHT = 40.0, 225.0  # grey levels that 95% of the pixels stay below, or above
_FAINT = 16.0  # grey levels of standard deviation: more is a bright or dark ground with a subject
_BLURRED = 0.15  # times the fine detail of the median image
_SHARP = 4.0  # grey levels: below, the median image has no detail to compare with
_SMALL = 0.25  # times the longer side of the median image
_ODD_SHAPE = 3.0  # times as long as wide
_FLAT, _PHOTOGRAPHS = 0.6, 0.25  # share of pixels equal to their neighbour: drawings, photographs
_USED = "used as it is"


class Usual(NamedTuple):
    """The median image's fine detail in grey levels, and its longer side in pixels."""

    detail: float
    side: float


class Look(NamedTuple):
    """Measures of n images, float32 (n,), in grey levels from 0 to 255.

    contrast: standard deviation; low, high: what 5% of the pixels are below, above; detail: mean
    difference of neighbouring pixels but one, less that of slow changes; flat: share of pixels
    equal to their right-hand neighbour.
    """

    contrast: NDArray[np.float32]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    detail: NDArray[np.float32]
    flat: NDArray[np.float32]


def quality(subject: Subject) -> Iterator[Finding]:
    """Findings about single images, from their pixels and their files."""
    look = measure(subject)
    sides = [max(header.height, header.width) for header in subject.headers.values()]
    usual = Usual(float(np.median(look.detail)), float(np.median(sides)) if sides else 0.0)
    for number in range(len(subject.pack)):
        for what, training, score in _found(subject, look, usual, number):
            yield Finding("quality", what, training, (subject.place(number),), score)
    yield from _out_of_style(subject, look)


def measure(subject: Subject) -> Look:
    """Measure all images as they are packed."""
    pack = subject.pack
    parts = [
        _measure(pack.take(np.arange(first, min(first + _BATCH, len(pack)))))
        for first in range(0, len(pack), _BATCH)
    ]
    return Look(*(torch.cat(one).numpy() for one in zip(*parts, strict=True)))


def _measure(images: Tensor) -> tuple[Tensor, ...]:
    grey = images.float().mean(3)
    values = grey.flatten(1)
    low, high = values.quantile(torch.tensor([0.05, 0.95]), dim=1)
    smooth = F.avg_pool2d(grey.unsqueeze(1), 3, stride=1)[:, 0]
    detail = (grey[:, 1:-1, 1:-1] - smooth).abs().mean((1, 2))
    flat = (images[:, :, 1:] == images[:, :, :-1]).all(3).float().mean((1, 2))
    return values.std(1), low, high, detail, flat


def _found(
    subject: Subject, look: Look, usual: Usual, number: int
) -> Iterator[tuple[str, str, float]]:
    """What is wrong with an image, what training does, and how grave it is."""
    contrast = float(look.contrast[number])
    if contrast < _BLANK:
        yield f"nearly blank (contrast {contrast:.1f} of 255)", _USED, 1 - contrast / 255
    elif look.high[number] < _DARK and contrast < _FAINT:
        yield f"very dark (95% below {look.high[number]:.0f} of 255)", _USED, 0.7
    elif look.low[number] > _BRIGHT and contrast < _FAINT:
        yield f"very bright (95% above {look.low[number]:.0f} of 255)", _USED, 0.6
    else:
        yield from _blurred(float(look.detail[number]), usual.detail)
    header = subject.header(number)
    if header:
        yield from _shape(usual.side, header.height, header.width)


def _blurred(detail: float, usual: float) -> Iterator[tuple[str, str, float]]:
    if usual >= _SHARP and detail < _BLURRED * usual:
        relative = detail / usual
        yield f"blurred ({relative:.0%} of the usual detail)", _USED, 0.8 * (1 - relative)


def _shape(usual_side: float, height: int, width: int) -> Iterator[tuple[str, str, float]]:
    longer = max(height, width) / min(height, width)
    if longer > _ODD_SHAPE:
        share = min(1.0, longer / 20)
        squeezed = "squeezed to the input's shape (--fit pad keeps its own)"
        yield f"odd shape ({width}x{height})", squeezed, 0.5 * share
    relative = max(height, width) / usual_side
    if relative < _SMALL:
        yield f"small ({width}x{height})", "enlarged to the input's size", 0.5 * (1 - relative)


def _out_of_style(subject: Subject, look: Look) -> Iterator[Finding]:
    """Screenshots and drawings, where most images are photographs."""
    if float(np.median(look.flat)) > _PHOTOGRAPHS:
        return
    for number in np.flatnonzero((look.flat > _FLAT) & (look.contrast >= _BLANK)).tolist():
        share = float(look.flat[number])
        what = f"a screenshot or drawing among photographs ({share:.0%} flat)"
        yield Finding("quality", what, _USED, (subject.place(number),), 0.6 * share)
