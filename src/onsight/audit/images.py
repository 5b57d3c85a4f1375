"""Findings about files and images: unusable files, copies, and images that are hard to learn from.

B batch, C channels, H height, W width, n images.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onsight.audit.dataset import CheckedDataset
from onsight.audit.finding import AuditFinding, AuditItem
from onsight.data.duplicates.comparison import NearDuplicate
from onsight.data.index import SPLIT_NAMES
from onsight.data.split import group_identical

SPLIT_ORDER = ("", *SPLIT_NAMES[1:])  # training uses the copy in the later split
_MAX_DIFFERENCE = 40.0  # grey levels of difference between near-duplicates with a score of 0

_BATCH = 1024
_BLANK = 4.0  # grey levels of standard deviation; below, hardly anything is visible
_DARK, _BRIGHT = 40.0, 225.0  # grey levels that 95% of the pixels stay below, or above
_FAINT = 16.0  # grey levels of standard deviation; more is a subject on a dark or bright ground
_BLURRED = 0.15  # fraction of the median image's fine detail; below, an image is blurred
_SHARP = 4.0  # grey levels of detail; below, the median image is too blurred to compare with
_SMALL = 0.25  # fraction of the median longer side; below, an image is small
_ODD_SHAPE = 3.0  # ratio of the longer to the shorter side; above, the shape is odd
# Fractions of pixels equal to their neighbour: above the first, an image is a drawing; if the
# median is above the second, the dataset is not one of photographs.
_FLAT, _PHOTOGRAPHS = 0.6, 0.25
_USED = "used as it is"


class ImageMeasures(NamedTuple):
    """Measures of n images, float32 (n,), in grey levels from 0 to 255 unless noted."""

    contrast: NDArray[np.float32]  # standard deviation
    low: NDArray[np.float32]  # 5th percentile of the pixels
    high: NDArray[np.float32]  # 95th percentile
    detail: NDArray[np.float32]  # mean difference from the average of the 3x3 neighbourhood
    flat: NDArray[np.float32]  # fraction of pixels equal to their right-hand neighbour


def find_unusable_files(dataset: CheckedDataset) -> Iterator[AuditFinding]:
    """Yield a finding for each file that cannot be listed or decoded."""
    in_training = "skipped, and listed in problems.csv"
    for problem in dataset.problems:
        items = (AuditItem(problem.path),)
        yield AuditFinding("unusable", problem.reason, in_training, items, 1.0)


def find_copied_images(
    dataset: CheckedDataset, near_duplicates: Sequence[NearDuplicate]
) -> Iterator[AuditFinding]:
    """Yield a finding for each identical image, paired with the one to use, and near-duplicate."""
    yield from _find_identical_images(dataset)
    for pair in near_duplicates:
        items = dataset.item(pair.first), dataset.item(pair.second)
        score = 1 - pair.difference / _MAX_DIFFERENCE
        yield _make_copy_finding(items, "near-duplicate", f"near-duplicate, {pair.kind}", score)


def find_poor_images(dataset: CheckedDataset) -> Iterator[AuditFinding]:
    """Yield findings about single images, from their pixels and the headers of their files."""
    measures = measure_images(dataset)
    sides = [max(header.height, header.width) for header in dataset.headers.values()]
    median_side = float(np.median(sides)) if sides else 0.0
    median_detail = float(np.median(measures.detail))
    for index in range(len(dataset.pack)):
        found = _assess(dataset, measures, index, median_detail, median_side)
        for description, in_training, score in found:
            items = (dataset.item(index),)
            yield AuditFinding("quality", description, in_training, items, score)
    yield from _find_drawings(dataset, measures)


def measure_images(dataset: CheckedDataset) -> ImageMeasures:
    """Measure all images, in the size that they were decoded to."""
    pack = dataset.pack
    parts = [
        _measure_batch(pack.take(np.arange(first, min(first + _BATCH, len(pack)))))
        for first in range(0, len(pack), _BATCH)
    ]
    return ImageMeasures(*(torch.cat(column).numpy() for column in zip(*parts, strict=True)))


def _find_identical_images(dataset: CheckedDataset) -> Iterator[AuditFinding]:
    group, first = group_identical(dataset.pack.digests)
    order = np.lexsort((-dataset.pack.index.splits, group))  # test before validation before train
    used = order[np.searchsorted(group[order], np.arange(len(first)))]  # one image of each group
    for index in np.flatnonzero(used[group] != np.arange(len(group))).tolist():
        items = dataset.item(int(used[group[index]])), dataset.item(index)
        yield _make_copy_finding(items, "identical", "identical", 1.0)


def _make_copy_finding(
    items: tuple[AuditItem, AuditItem], kind: str, description: str, score: float
) -> AuditFinding:
    """Return a finding about two copies, which is more serious across splits or labels."""
    first, second = items
    in_training = "both are used, on the same side of every split"
    if first.split != second.split:
        excluded = min(items, key=lambda item: SPLIT_ORDER.index(item.split))
        kind, description = "leakage", f"{description}; {first.split} and {second.split}"
        in_training = f"the one in {excluded.split} is excluded"
    elif first.label != second.label:
        kind = "two-labels"
    if kind == "leakage" and first.label != second.label:
        description += "; under two labels"
    return AuditFinding(kind, description, in_training, items, score)


def _measure_batch(images: Tensor) -> tuple[Tensor, ...]:
    """Return the columns of ImageMeasures for images (B, H, W, C)."""
    grey = images.float().mean(3)
    values = grey.flatten(1)
    low, high = values.quantile(torch.tensor([0.05, 0.95]), dim=1)
    smooth = F.avg_pool2d(grey.unsqueeze(1), 3, stride=1)[:, 0]
    detail = (grey[:, 1:-1, 1:-1] - smooth).abs().mean((1, 2))
    flat = (images[:, :, 1:] == images[:, :, :-1]).all(3).float().mean((1, 2))
    return values.std(1), low, high, detail, flat


def _assess(
    dataset: CheckedDataset,
    measures: ImageMeasures,
    index: int,
    median_detail: float,
    median_side: float,
) -> Iterator[tuple[str, str, float]]:
    """Yield what is wrong with an image: the description, what training does, and the score."""
    contrast, low, high = measures.contrast[index], measures.low[index], measures.high[index]
    detail = float(measures.detail[index])
    if contrast < _BLANK:
        yield f"nearly blank (contrast {contrast:.1f} of 255)", _USED, 1 - float(contrast) / 255
    elif high < _DARK and contrast < _FAINT:
        yield f"very dark (95% below {high:.0f} of 255)", _USED, 0.7
    elif low > _BRIGHT and contrast < _FAINT:
        yield f"very bright (95% above {low:.0f} of 255)", _USED, 0.6
    elif median_detail >= _SHARP and detail < _BLURRED * median_detail:
        relative = detail / median_detail
        yield f"blurred ({relative:.0%} of the usual detail)", _USED, 0.8 * (1 - relative)
    header = dataset.header(index)
    if header:
        yield from _assess_shape(median_side, header.height, header.width)


def _assess_shape(median_side: float, height: int, width: int) -> Iterator[tuple[str, str, float]]:
    elongation = max(height, width) / min(height, width)
    if elongation > _ODD_SHAPE:
        squeezed = "squeezed to the input's shape (--fit pad preserves it)"
        yield f"odd shape ({width}x{height})", squeezed, 0.5 * min(1.0, elongation / 20)
    relative = max(height, width) / median_side
    if relative < _SMALL:
        yield f"small ({width}x{height})", "enlarged to the input's size", 0.5 * (1 - relative)


def _find_drawings(dataset: CheckedDataset, measures: ImageMeasures) -> Iterator[AuditFinding]:
    """Yield screenshots and drawings, if most images are photographs."""
    if float(np.median(measures.flat)) > _PHOTOGRAPHS:
        return
    is_drawing = (measures.flat > _FLAT) & (measures.contrast >= _BLANK)
    for index in np.flatnonzero(is_drawing).tolist():
        fraction = float(measures.flat[index])
        description = f"a screenshot or drawing among photographs ({fraction:.0%} flat)"
        items = (dataset.item(index),)
        yield AuditFinding("quality", description, _USED, items, 0.6 * fraction)
