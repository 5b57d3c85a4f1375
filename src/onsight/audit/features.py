"""Features of all images, for judging their labels: a backbone's if its weights are here.

n images, D features, C channels.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from onsight.data.duplicates.signatures import planes
from onsight.data.loader import Images, Loader
from onsight.data.normalization import Normalization
from onsight.data.pack import Pack
from onsight.features.feature_pass import (
    FeatureStore,
    compute_features,
    feature_loader,
    features_key,
)
from onsight.models.catalog import expected_input, make_model
from onsight.models.classifier import Classifier
from onsight.models.pretrained import OFFLINE_MODEL, has_offline_weights, offline_hint
from onsight.report.console import Reporter

_LEAST_SIDE = 96  # pixels that a backbone is given at least
_ROWS = 1024  # images at once
_PIXELS = 16  # pixels a side that are features where there is no backbone


class Features(NamedTuple):
    """values: float32 (n, D) in the order of the pack; made_by: in words."""

    values: Tensor
    made_by: str


def features_of(
    pack: Pack, cache_folder: Path | None, device: torch.device, reporter: Reporter
) -> Features:
    """The features of every image, kept in the cache; of small images without weights, pixels.

    Raises DiskError.
    """
    if not has_offline_weights(OFFLINE_MODEL):
        hint = offline_hint()
        reporter.say(
            f"labels are judged by small copies of the images: {hint}, which judges better"
        )
        return Features(_pixels(pack), f"{_PIXELS}x{_PIXELS} pixels")
    classifier = _classifier(pack, device)
    ids = torch.arange(len(pack))
    loader = feature_loader(Loader(Images.of(pack), ids, 1, device))

    def compute() -> Tensor:
        with reporter.bar("features", len(pack)) as bar:
            return compute_features(classifier, loader.in_order(), progress=bar.advance)

    key = features_key(classifier, pack.format, torch.from_numpy(pack.digests))
    values = FeatureStore(cache_folder).get(key, compute, len(pack))
    return Features(values, OFFLINE_MODEL)


def _classifier(pack: Pack, device: torch.device) -> Classifier:
    height, width, channels = pack.format.height, pack.format.width, pack.format.channels
    scale = max(1.0, _LEAST_SIDE / min(height, width))
    size = round(scale * height), round(scale * width)
    net = make_model(OFFLINE_MODEL, (channels, *size), 2, pretrained=True)
    expected = expected_input(OFFLINE_MODEL)
    assert expected is not None
    normalization = Normalization(*expected.scaling(channels), size if scale > 1 else None)
    return Classifier(net.to(device), normalization, "fp32", device)


def _pixels(pack: Pack) -> Tensor:
    parts = [
        planes(pack.take(numbers), _PIXELS).flatten(1) / 255
        for numbers in np.array_split(np.arange(len(pack)), -(-len(pack) // _ROWS))
    ]
    return torch.cat(parts)
