"""Similar training images and heat maps of the worst mistakes, within a time limit."""

import time

import numpy as np
import torch
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
from onsight.models.classifier import ImageClassifier
from onsight.report.gallery import Lookalikes, MistakesHeat, worst_mistakes
from onsight.training.fit_head import take_last_layer
from onsight_explain.devices import is_out_of_memory

_LOOKALIKES_PER_MISTAKE = 3
_SAMPLE_SIZE = 2000  # training images to search if their features are not cached
_MIN_SAMPLE_SIZE = 100  # among fewer, even the most similar image differs much
_SEARCH_SECONDS = 1.0
_UNHURRIED = 10  # times as long, for searching and for heat maps, if there is no budget


def find_lookalikes(
    config: Config,
    dataset: Dataset,
    classifier: ImageClassifier,
    per_image: PredictionTable,
    deadline: Deadline,
    image_seconds: float,
) -> Lookalikes:
    """Find the training images most similar to each of the worst mistakes.

    Searches all training images if their features are cached, otherwise a sample of up to 2,000.
    Stops after a second, or at the deadline if that is earlier; without one, after ten seconds.

    Args:
        per_image: Its predictions for the held-out images.
        image_seconds: Time to evaluate an image; 0 if unknown.
    """
    mistakes = torch.from_numpy(per_image.ids[worst_mistakes(per_image)])
    images = dataset.ids(TRAIN)
    if len(mistakes) == 0 or len(images) == 0:
        return _no_lookalikes(images, "")
    try:
        end = _find_end(_SEARCH_SECONDS, deadline)
        return _search(config, dataset, classifier, mistakes, images, end, image_seconds)
    except ModelError:
        return _no_lookalikes(images, "the network does not end in a linear layer")


def _search(
    config: Config,
    dataset: Dataset,
    classifier: ImageClassifier,
    mistakes: Tensor,
    images: Tensor,
    end: float,
    image_seconds: float,
) -> Lookalikes:
    features = _load_features(config, dataset, classifier, images)
    queries = _compute_features(dataset, classifier, mistakes, end, image_seconds)
    is_candidate = ~torch.isin(images, mistakes)  # with folds, mistakes are training images
    candidates = images[is_candidate]
    if features is not None:
        features = features[is_candidate]
    elif len(queries) == len(mistakes):
        # Images are numbered by digest, so the first ones are a random sample.
        sample = candidates[:_SAMPLE_SIZE]
        features = _compute_features(dataset, classifier, sample, end, image_seconds)
    min_count = max(1, min(_MIN_SAMPLE_SIZE, len(candidates)))
    if features is None or len(features) < min_count or len(queries) == 0:
        return _no_lookalikes(images, "there was no time to compute their features")
    nearest = find_nearest(queries, features, _LOOKALIKES_PER_MISTAKE)
    ids = candidates[nearest.rows].numpy()
    return Lookalikes(ids, nearest.similarities.numpy(), len(features), len(candidates))


def _load_features(
    config: Config, dataset: Dataset, classifier: ImageClassifier, images: Tensor
) -> Tensor | None:
    """Load the features (n, D) of all training images, which runs with a frozen backbone cache."""
    if not config.freeze:
        return None
    digests = torch.from_numpy(dataset.pack.digests)[images]
    key = features_key(classifier, dataset.format, digests, for_head=True)
    features = FeatureStore(find_cache_folder(config.cache_folder)).find(key)
    return None if features is None else take_last_layer(classifier.feature_member.net, features)


def _compute_features(
    dataset: Dataset, classifier: ImageClassifier, ids: Tensor, end: float, image_seconds: float
) -> Tensor:
    """Compute features (m, D) of the first images, as many as there is time for.

    Args:
        classifier: Computes the features.
        ids: Numbers of the images (n,).
        end: When to stop, on the monotonic clock.
        image_seconds: Expected time per image; 0 if unknown.
    """
    left = max(0.0, end - time.monotonic())
    if left < len(ids) * image_seconds or left == 0:
        ids = ids[: int(left / max(image_seconds, 1e-9))]
    loader = feature_loader(Loader(dataset.images, ids, 1, classifier.device))
    return compute_features(classifier, loader.in_order(), deadline=end)


def _find_end(seconds: float, deadline: Deadline) -> float:
    """Return when to stop, on the monotonic clock."""
    seconds = seconds if deadline.is_set else _UNHURRIED * seconds
    return time.monotonic() + min(seconds, deadline.remaining())


def _no_lookalikes(images: Tensor, reason: str) -> Lookalikes:
    empty = np.zeros((0, _LOOKALIKES_PER_MISTAKE))
    return Lookalikes(empty.astype(np.int64), empty.astype(np.float32), 0, len(images), reason)


_HEAT_BATCH_SIZE = 4
_HEAT_SECONDS = 3.0
_MAX_HEAT_COST = 30  # upper bound on the time of an image's heat map, in evaluations of an image


def find_heat(
    dataset: Dataset,
    classifier: ImageClassifier,
    per_image: PredictionTable,
    deadline: Deadline,
    image_seconds: float,
) -> MistakesHeat:
    """Compute heat maps of the worst mistakes, as many as there is time for.

    Stops after three seconds, or at the deadline if that is earlier; without one, after 30.

    Args:
        per_image: Its predictions for the held-out images.
        image_seconds: Time to evaluate an image; 0 if unknown.
    """
    heats = [np.zeros((0, *dataset.images.shape[:2]), np.float32)]
    rows = worst_mistakes(per_image)
    if len(rows) == 0:
        return MistakesHeat(heats[0])
    reason = ""
    end = _find_end(_HEAT_SECONDS, deadline)
    batch_seconds = _MAX_HEAT_COST * _HEAT_BATCH_SIZE * image_seconds
    ids = torch.from_numpy(per_image.ids[rows])
    predicted = torch.from_numpy(per_image.predicted[rows])
    batches = Loader(dataset.images, ids, _HEAT_BATCH_SIZE, classifier.device).in_order()
    try:
        require_captum()
        for batch, classes in zip(batches, predicted.split(_HEAT_BATCH_SIZE), strict=True):
            if time.monotonic() + batch_seconds > end:
                reason = "there was no time to compute more"
                break
            heats.append(heat_maps(classifier, batch.images, classes))
    except (ConfigError, ModelError) as error:
        reason = str(error)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        reason = "memory ran out"
    return MistakesHeat(np.concatenate(heats), reason)
