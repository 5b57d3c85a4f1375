"""What the report shows of the worst mistakes, if it is quick: similar images and heat maps."""

import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.config import Config
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import Dataset
from onsight.data.index import TRAIN
from onsight.data.loader import Loader
from onsight.deadline import Deadline
from onsight.errors import ConfigError, ModelError
from onsight.evaluation.predictions import PredictionTable
from onsight.features.feature_pass import (
    FeatureStore,
    compute_features,
    feature_loader,
    features_key,
)
from onsight.features.neighbours import find_nearest
from onsight.heatmaps.heat import heat_maps, require_captum
from onsight.models.classifier import Classifier
from onsight.report.gallery import Lookalikes, MistakesHeat, worst_mistakes
from onsight_explain.devices import is_out_of_memory

_EACH = 3
_SAMPLE, _FEWEST = 2000, 100  # training images; of fewer, the nearest is far
_SEARCH_SECONDS = 1.0


def find_lookalikes(
    config: Config,
    dataset: Dataset,
    classifier: Classifier,
    per_image: PredictionTable,
    deadline: Deadline,
    image_seconds: float,
) -> Lookalikes:
    """The three nearest training images of each of the worst mistakes.

    All training images are compared if their features are in the cache, otherwise 2,000 or as
    many as there is time for: a second, or what is left of a budget if that is less.

    image_seconds: what evaluating an image takes; 0 if that is unknown.
    """
    mistakes = torch.from_numpy(per_image.ids[worst_mistakes(per_image)])
    images = dataset.ids(TRAIN)
    if len(mistakes) == 0 or len(images) == 0:
        return _none(images, "")
    try:
        end = time.monotonic() + min(_SEARCH_SECONDS, deadline.remaining())
        return _search(config, dataset, classifier, mistakes, images, end, image_seconds)
    except ModelError:
        return _none(images, "the network does not end in a linear layer")


def _search(
    config: Config,
    dataset: Dataset,
    classifier: Classifier,
    mistakes: Tensor,
    images: Tensor,
    deadline: float,
    each: float,
) -> Lookalikes:
    features = _kept_features(config, dataset, classifier, images)
    queries = _features(dataset, classifier, mistakes, deadline, each)
    others = ~torch.isin(images, mistakes)  # folds judge training images
    searched = images[others]
    if features is not None:
        features = features[others]
    elif len(queries) == len(mistakes):  # images are numbered by digest: the first are a sample
        features = _features(dataset, classifier, searched[:_SAMPLE], deadline, each)
    enough = max(1, min(_FEWEST, len(searched)))
    if features is None or len(features) < enough or len(queries) == 0:
        return _none(images, "there was no time to compute their features")
    found = find_nearest(queries, features, _EACH)
    numbers = searched[found.rows].numpy()
    return Lookalikes(numbers, found.similarities.numpy(), len(features), len(searched))


def _kept_features(
    config: Config, dataset: Dataset, classifier: Classifier, images: Tensor
) -> Tensor | None:
    """The features of all training images, which a frozen backbone's run has computed."""
    if not config.freeze:
        return None
    digests = torch.from_numpy(dataset.pack.digests)[images]
    key = features_key(classifier, dataset.format, digests)
    return FeatureStore(find_cache_folder(config.cache_folder)).find(key)


def _features(
    dataset: Dataset, classifier: Classifier, ids: Tensor, deadline: float, each_seconds: float
) -> Tensor:
    """Features (m, D) of the first images, as many as there is time for.

    each_seconds: what an image is expected to take; 0 if that is unknown.
    """
    left = max(0.0, deadline - time.monotonic())
    if left < len(ids) * each_seconds or left == 0:
        ids = ids[: int(left / max(each_seconds, 1e-9))]
    loader = feature_loader(Loader(dataset.images, ids, 1, classifier.device))
    return compute_features(classifier, loader.in_order(), deadline=deadline)


def _none(images: Tensor, reason: str) -> Lookalikes:
    empty = np.zeros((0, _EACH))
    return Lookalikes(empty.astype(np.int64), empty.astype(np.float32), 0, len(images), reason)


_AT_ONCE = 4  # images between two looks at the clock
_HEAT_SECONDS = 3.0
_EVALUATIONS = 30  # what the heat of an image takes at most, in evaluations of one


def find_heat(
    dataset: Dataset,
    classifier: Classifier,
    per_image: PredictionTable,
    deadline: Deadline,
    image_seconds: float,
) -> MistakesHeat:
    """The heat of the worst mistakes, of as many as there is time for.

    That is three seconds, or what is left of a budget if that is less.

    image_seconds: what evaluating an image takes; 0 if that is unknown.
    """
    heats = [np.zeros((0, *dataset.images.shape[:2]), np.float32)]
    reason = ""
    if len(worst_mistakes(per_image)) == 0:
        return MistakesHeat(heats[0])
    end = time.monotonic() + min(_HEAT_SECONDS, deadline.remaining())
    try:
        for heat in _timely_heat(dataset, classifier, per_image, end, image_seconds):
            heats.append(heat)
    except (ConfigError, ModelError, _OutOfTime) as error:
        reason = str(error)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        reason = "memory ran out"
    return MistakesHeat(np.concatenate(heats), reason)


def _timely_heat(
    dataset: Dataset,
    classifier: Classifier,
    per_image: PredictionTable,
    deadline: float,
    image_seconds: float,
) -> Iterator[NDArray[np.float32]]:
    """Heat of a few mistakes at a time, (b, H, W). Raises what `heat_maps` raises, _OutOfTime."""
    needed = _EVALUATIONS * _AT_ONCE * image_seconds
    require_captum()
    places = worst_mistakes(per_image)
    ids, predicted = (torch.from_numpy(of[places]) for of in (per_image.ids, per_image.predicted))
    batches = Loader(dataset.images, ids, _AT_ONCE, classifier.device).in_order()
    for batch, classes in zip(batches, predicted.split(_AT_ONCE), strict=True):
        if time.monotonic() + needed > deadline:
            raise _OutOfTime("there was no time to compute more")
        yield heat_maps(classifier, batch.images, classes)


class _OutOfTime(Exception):
    """The next heat maps would come too late."""
