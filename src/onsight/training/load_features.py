"""Computes features of a run's images as far as time allows, or takes them from the cache."""

import math
import time
from functools import partial

import torch
from torch import Tensor, nn

from onsight.config import Config
from onsight.data.cache import find_cache_folder
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Loader
from onsight.features.feature_pass import (
    FeatureStore,
    FeatureWork,
    SharedFeatures,
    compute_features,
    feature_loader,
    features_key,
)
from onsight.features.heads import LabelledFeatures
from onsight.models.classifier import Classifier
from onsight.step.fine_tuning import HEAD_SHARE
from onsight.training.decisions import ANSWER, COUNT
from onsight.training.job import Job
from onsight.tune.training_data import TrainingData
from onsight.tune.work import FEW_IMAGES

_REFIT_TIME = 1.5  # estimated time of a fit on all images, as a multiple of the first fit's


class FeatureLoader:
    """Loads features of a run's images from the cache, or computes them as far as time allows.

    A head is fitted on at most as many images as the config says.

    Attributes:
        work: What it took to compute the network's features, in all trainings of the run.
    """

    def __init__(
        self, config: Config, data: TrainingData, net: nn.Module, job: Job, shared: SharedFeatures
    ) -> None:
        self.data, self.job, self.shared = data, job, shared
        self.model, self.most_images = config.model, config.head_images
        self.classifier = Classifier(net, data.normalization, config.precision, data.device)
        self.time_share = 1.0 if config.freeze else HEAD_SHARE  # of what is left
        self.store = FeatureStore(find_cache_folder(config.cache_folder))
        net_kind = config.model, type(net), data.dataset.format
        self.work = shared.work.setdefault(net_kind, FeatureWork())

    def left_seconds(self) -> float:
        """Return the time left for what can be left out; infinity without a deadline."""
        return self.time_share * self.job.deadline.remaining_for_extras()

    def has_time_for(self, name: str, seconds: float) -> bool:
        """Decide whether something optional that takes some seconds is done.

        Args:
            name: The name of the decision on record.
            seconds: The estimated time, infinite for never; nan if there is no deadline.
        """
        left_seconds = self.left_seconds()
        is_affordable = not (seconds > left_seconds or seconds == math.inf)
        return self.job.decisions.decide(name, lambda: is_affordable, ANSWER)

    def load(
        self, name: str, split: int, views: list[str], share_of_time: float
    ) -> LabelledFeatures:
        """Return the features and labels of a split's images, or of as many as time allows.

        Args:
            name: The name under which the number of images is recorded.
            split: TRAIN or VALIDATION.
            views: The views to compute. All but the first are left out if time runs out.
            share_of_time: Fraction of the time left that each may take.
        """
        dataset = self.data.dataset
        ids = dataset.ids(split)
        if split == TRAIN and self.most_images:  # by digest, so the first are drawn at random
            views = views if len(views) * len(ids) <= self.most_images else views[:1]
            ids = ids[: self.most_images]
        labels = torch.from_numpy(dataset.pack.index.labels)[ids].long()
        essential_seconds = self.time_share * self.job.deadline.essential_seconds
        loaded: list[Tensor] = []
        for view in views:
            is_essential = len(ids) <= FEW_IMAGES
            left_seconds = self.left_seconds() + (essential_seconds if is_essential else 0.0)
            deadline = time.monotonic() + share_of_time * left_seconds
            if self.shared.are_all_needed and not loaded:
                deadline = math.inf
            features = self._load_in_time(f"{view} {name} features", ids, view, deadline)
            if loaded and len(features) < len(loaded[0]):
                break
            loaded.append(features)
        count = len(loaded[0])  # an edited record may claim more of another view
        return LabelledFeatures(torch.stack([view[:count] for view in loaded]), labels[:count])

    def load_for_refit(
        self, train: LabelledFeatures, views: list[str], fit_seconds: float
    ) -> LabelledFeatures | None:
        """Return the training and validation images together, to fit the final head on.

        Args:
            fit_seconds: Time of the fit on the training images; nan if there is no deadline.

        Returns:
            None if the run is evaluated on validation images, or time does not suffice for all
            images.
        """
        dataset = self.data.dataset
        has_test_images = (dataset.splits == TEST).any() or dataset.folds.value > 1
        if not has_test_images or len(train) < len(dataset.ids(TRAIN)):
            return None
        validation = self.load("refit", VALIDATION, views[: len(train.views)], 0.5)
        is_complete = len(validation) == len(dataset.ids(VALIDATION)) > 0
        if not is_complete or len(validation.views) < len(train.views):
            return None
        if not self.has_time_for("refit", _REFIT_TIME * fit_seconds):
            return None
        return train.join(validation)

    def _load_in_time(self, name: str, ids: Tensor, view: str, deadline: float) -> Tensor:
        """Return the features of the first images: as many as on record, or as time allows."""
        count = self.job.decisions.recall(name, COUNT)
        if count is not None:
            return self.compute(ids[:count], view)
        features = self.compute(ids, view, deadline)  # all ranks at the same time
        counts = self.job.world.gather(name, str(len(features)))
        return features[: self.job.decisions.decide(name, lambda: min(map(int, counts)), COUNT)]

    def compute(self, ids: Tensor, view: str, deadline: float = math.inf) -> Tensor:
        """Return the features of images from the cache, or compute them until the deadline."""
        dataset = self.data.dataset
        digests = torch.from_numpy(dataset.pack.digests)[ids]
        key = features_key(self.classifier, dataset.format, digests, view, for_head=True)
        classifier = self.classifier  # its backbone has the weights that the run starts from
        net = self.model, type(classifier.net), dataset.format
        kind = net, view, classifier.normalization, classifier.precision
        compute = partial(self._compute, view=view, deadline=deadline)
        return self.store.get(key, lambda: self.shared.get(kind, ids, compute), len(ids))

    def _compute(self, ids: Tensor, view: str, deadline: float) -> Tensor:
        device = self.classifier.device
        loader = feature_loader(Loader(self.data.images, ids, 1, device))
        started = time.perf_counter()
        with self.job.reporter.bar(f"features ({view})", len(ids)) as bar:
            features = compute_features(
                self.classifier, loader.in_order(), view, bar.advance, deadline, for_head=True
            )
        self.work.seconds += time.perf_counter() - started
        self.work.images += len(features)
        return features
