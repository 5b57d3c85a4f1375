"""Assembles the model file of a run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.index import TRAIN, VALIDATION
from onsight.models.classifier import Classifier
from onsight.models.file import ModelFile, image_keys
from onsight.models.head import hidden_units
from onsight.models.intermediate import IntermediateNet
from onsight.models.preprocessing import Preprocessing
from onsight.models.timm_nets import published_license


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
