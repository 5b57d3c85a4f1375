"""Short trials of models on a sample: a head on features, and a net from scratch."""

import time
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.config import Config
from onsight.data.dataset import Dataset, open_dataset
from onsight.data.index import TEST
from onsight.data.loader import Loader
from onsight.data.sources.source import Source, select_rows
from onsight.errors import DataError
from onsight.evaluation.predictions import evaluate_batches, evaluation_batch_size
from onsight.evaluation.statistics import wilson
from onsight.features.choose_head import COARSE, choose_head
from onsight.features.feature_pass import compute_features, feature_loader
from onsight.features.heads import LabelledFeatures
from onsight.models.classifier import Classifier
from onsight.models.head import set_training_mode
from onsight.step.build import make_net, make_update
from onsight.step.optim import learning_rate_factor, set_learning_rate
from onsight.tune.pace import time_decoding
from onsight.tune.training_data import make_normalization

_FINE = 1_000_000  # steps of a schedule that follows the clock
_BATCH = 32  # images at most: a second of training needs many steps more than large batches
_LEAST_FOR_CURVE = 40  # images
_SHORTER = 0.25  # of the seconds for training


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


@dataclass(frozen=True)
class Tried:
    """What a trial showed: right of judged images; trained: different images it learned from.

    seen: images it learned from, counting each time; image_seconds: to pass an image through
    the network, forward for a head, a whole step for a net. half: right of judged with half as
    many images, if tried; shorter: right and seen of a shorter training, if tried.
    """

    right: int
    judged: int
    trained: int
    seen: int
    image_seconds: float
    half: tuple[int, int] | None = None
    shorter: tuple[int, int] | None = None

    @property
    def error(self) -> float:
        """The share of mistakes, one standard error higher: few images prove little."""
        return error_of(self.right, self.judged)


def error_of(right: int, judged: int) -> float:
    """The share of mistakes, one standard error higher."""
    return wilson(judged - right, judged, z=1.0)[1]


def try_head(config: Config, sample: Sample, device: torch.device, seconds: float) -> Tried:
    """Fit a head on the features of as many images as there is time for; judged by folds."""
    dataset = sample.at(_size(config))
    net = make_net(config, dataset, device)
    scaling = make_normalization(config, dataset.images, dataset)
    classifier = Classifier(net, scaling, "fp32", device)
    ids = torch.cat([sample.trained, sample.judged])
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(config.seed))]
    loader = feature_loader(Loader(dataset.images, ids, 1, device))
    compute_features(classifier, [next(iter(loader.in_order()))])  # not timed: the first is slow
    begun = time.perf_counter()
    deadline = time.monotonic() + seconds
    features = compute_features(classifier, loader.in_order(), deadline=deadline)
    each = (time.perf_counter() - begun) / len(features)
    data = LabelledFeatures(features[None], _labels(sample, ids[: len(features)]))
    classes = len(dataset.classes)
    nothing = data.take(torch.arange(0))
    chosen = choose_head(data, nothing, classes, penalties=COARSE)
    half = None
    if len(data) >= _LEAST_FOR_CURVE:
        part = data.take(torch.arange(len(data) // 2))
        fewer = choose_head(part, nothing, classes, penalties=COARSE)
        half = fewer.correct, len(fewer.labels)
    total = len(chosen.labels)
    return Tried(chosen.correct, total, len(data), len(data), each, half)


def try_training(config: Config, sample: Sample, device: torch.device, seconds: float) -> Tried:
    """Train for the given seconds, with a whole schedule; judged on images left out.

    A quarter of the time goes to a shorter training, which shows how fast mistakes become fewer.
    """
    shorter = _train_for(_SHORTER * seconds, config, sample, device)
    longer = _train_for((1 - _SHORTER) * seconds, config, sample, device)
    return replace(longer, shorter=(shorter.right, shorter.seen))


def _train_for(seconds: float, config: Config, sample: Sample, device: torch.device) -> Tried:
    dataset = sample.at(_size(config))
    net = make_net(config, dataset, device)
    scaling = make_normalization(config, dataset.images, dataset)
    few = min(_BATCH, config.batch_size)
    plain = {"precision": "fp32", "compile": "off", "cuda_graph": "off", "batch_size": few}
    config = config.model_copy(update=plain)
    update = make_update(config, net, dataset, scaling, device)
    loader = Loader(
        dataset.images,
        sample.trained,
        config.batch_size,
        device,
        with_next=update.augmentation.mixes,
    )
    set_training_mode(net)
    first = next(loader.epoch(config.seed, 0))
    update(first, 0, 0)  # not timed: the first is slow
    update.step.flush()
    begun, images = time.perf_counter(), 0
    for epoch in count():
        for step, batch in enumerate(loader.epoch(config.seed, epoch)):
            share = (time.perf_counter() - begun) / seconds
            if share >= 1 and images:
                break
            factor = learning_rate_factor("one-cycle", int(min(share, 0.999) * _FINE), _FINE, 0)
            set_learning_rate(update.step.optimizer, config.learning_rate, factor)
            update(batch, epoch, step)
            images += len(batch.labels)
        if time.perf_counter() - begun >= seconds:
            break
    update.step.flush()
    took = time.perf_counter() - begun
    classifier = Classifier(net, scaling, "fp32", device)
    at_once = evaluation_batch_size(device, dataset.format.model_size)
    judges = Loader(dataset.images, sample.judged, at_once, device)
    judged = evaluate_batches(classifier, judges.in_order())
    right = int((judged.labels == judged.predicted).sum())
    different = min(images, len(sample.trained))
    return Tried(right, len(judged), different, images, took / images)


def _labels(sample: Sample, ids: Tensor) -> Tensor:
    return torch.from_numpy(sample.dataset.pack.index.labels)[ids].long()


def _size(config: Config) -> tuple[int, int]:
    size = config.size
    assert size is not None
    return size


_MOST = 8000  # images: more would not change a decision
_FEWEST = 64
_TIMING_SHARE = 0.2  # of the seconds, to find out how long an image takes
_JUDGED_PART = 4  # one image in so many is judged


def draw_sample(
    source: Source, config: Config, size: tuple[int, int], threads: int, seconds: float
) -> Sample:
    """Decode as many images as fit into the given seconds, never one of a given test part.

    size: (height, width) in pixels. Raises DataError where a sample has too little to learn from.
    """
    rows = np.flatnonzero(source.index.splits != TEST)
    rows = np.random.default_rng(config.seed).permutation(rows)
    each = max(1e-6, time_decoding(source, config, size, _TIMING_SHARE * seconds) / threads)
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
