"""Assembles the model file of a run, and replaces it by a better one while a network is trained."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.index import TRAIN, VALIDATION
from onsight.errors import ModelError
from onsight.evaluation.metrics import accuracy_with_interval, compute_metrics
from onsight.evaluation.predictions import PredictionTable
from onsight.models.classifier import Classifier
from onsight.models.file import ModelFile, image_keys, load_model_file, save_model
from onsight.models.head import hidden_units
from onsight.models.intermediate import IntermediateNet
from onsight.models.preprocessing import Preprocessing
from onsight.models.timm_nets import published_license

_SECONDS_BETWEEN = 20.0  # between two replacements during a training; each writes a whole file


class BestSoFar:
    """Replaces the model file of a run with better weights while a network is trained.

    Nothing of the run depends on that file, so the clock may decide when to write it.

    Args:
        path: The model file of the run; it need not exist.
        config: The settings of the network.
        dataset: The images that it is trained on.
        provenance: What the file contains about its origin.
    """

    def __init__(
        self, path: Path, config: Config, dataset: Dataset, provenance: dict[str, Any]
    ) -> None:
        self.path = path
        self.config = config
        self.dataset = dataset
        self.provenance = provenance
        self.accuracy_low = _read_accuracy_low(path)
        self.written_at = -math.inf

    def replace_if_better(self, classifier: Classifier, validation: PredictionTable) -> None:
        """Write the classifier unless the file's accuracy has a higher lower bound.

        The file may have been evaluated on fewer images, which makes its lower bound lower.

        Args:
            validation: The classifier's predictions for validation images.

        Raises:
            DiskError: The file cannot be written.
        """
        now = time.monotonic()
        low = accuracy_with_interval(validation)["accuracy_low"]
        if now - self.written_at < _SECONDS_BETWEEN or low is None or low < self.accuracy_low:
            return
        results = {**compute_metrics(validation, self.dataset.classes), "split": "validation"}
        file = make_model_file(self.config, self.dataset, classifier, results, self.provenance)
        save_model(self.path, file)
        self.accuracy_low, self.written_at = low, now


def _read_accuracy_low(path: Path) -> float:
    """Return the lower bound of a model's accuracy; -1 if there is no model or no bound."""
    try:
        low = load_model_file(path).results.get("accuracy_low") if path.exists() else None
    except ModelError:  # such a file is better replaced
        low = None
    return -1.0 if low is None else float(low)


def make_model_file(
    config: Config,
    dataset: Dataset,
    classifier: Classifier,
    results: Mapping[str, Any],
    provenance: dict[str, Any],
) -> ModelFile:
    """Return a model file with the classifier's current weights."""
    scaling = classifier.normalization
    inputs = {"mean": scaling.mean, "std": scaling.std, "precision": classifier.precision}
    starts_published = config.pretrained and not config.weights
    is_seen = (dataset.splits == TRAIN) | (dataset.splits == VALIDATION)
    return ModelFile(
        model=config.model,
        classes=dataset.classes,
        preprocessing=Preprocessing.of(vars(dataset.format) | inputs),
        results=results,
        provenance=provenance,
        weights=dict(classifier.net.state_dict()),
        seen=np.union1d(image_keys(dataset.pack.digests[is_seen]), dataset.seen_before),
        temperature=classifier.temperature,
        out_of_distribution=classifier.out_of_distribution,
        hidden_units=hidden_units(classifier.net),
        uses_all_layers=isinstance(classifier.net, IntermediateNet),
        weights_license=published_license(config.model) if starts_published else None,
    )
