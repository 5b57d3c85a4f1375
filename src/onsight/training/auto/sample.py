"""A sample of DATA, decoded before everything else, to try models on."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.config import Config
from onsight.data.dataset import Dataset, open_dataset
from onsight.data.index import TEST
from onsight.data.sources.source import Source, select_rows
from onsight.errors import DataError
from onsight.training.images.pace import decoding_seconds

_MOST = 8000  # images: more would not change a decision
_FEWEST = 64
_TIMING_SHARE = 0.2  # of the seconds, to find out how long an image takes
_JUDGED_PART = 4  # one image in so many is judged


@dataclass(frozen=True)
class Sample:
    """Some images, decoded at one size. decode_seconds: for each image.

    trained, judged: int64 image numbers, none in both.
    """

    dataset: Dataset
    decode_seconds: float
    trained: Tensor
    judged: Tensor

    def at(self, size: tuple[int, int]) -> Dataset:
        """The sample for a model whose input has this (height, width) in pixels."""
        packed = self.dataset.format
        own = (packed.height, packed.width)
        shown = replace(packed, input_size=None if size == own else size)
        return replace(self.dataset, format=shown)


def draw_sample(
    source: Source, config: Config, size: tuple[int, int], threads: int, seconds: float
) -> Sample:
    """Decode as many images as fit into the given seconds, never one of a given test part.

    size: (height, width) in pixels. Raises DataError where a sample has too little to learn from.
    """
    rows = np.flatnonzero(source.index.splits != TEST)
    rows = np.random.default_rng(config.seed).permutation(rows)
    each = max(1e-6, decoding_seconds(source, config, size, _TIMING_SHARE * seconds) / threads)
    count = min(_MOST, max(_FEWEST, int((1 - _TIMING_SHARE) * seconds / each)))
    dataset = _decode(source, rows[:count], config, size, threads)
    if dataset is None:
        raise DataError("a sample of the images has too little to learn from")
    # Validation images alone would be too few to judge by.
    ids = torch.from_numpy(np.flatnonzero(dataset.splits != TEST))
    judged = ids[::_JUDGED_PART]
    return Sample(dataset, each, ids[~torch.isin(ids, judged)], judged)


def _decode(
    source: Source, rows: NDArray[np.int64], config: Config, size: tuple[int, int], threads: int
) -> Dataset | None:
    sampled = select_rows(source, np.sort(rows))
    plain = {"strict": False, "residency": "memory", "crop_area": 1.0, "folds": "1"}
    try:
        return open_dataset(sampled, config.model_copy(update=plain), size, None, threads)
    except DataError:
        return None
