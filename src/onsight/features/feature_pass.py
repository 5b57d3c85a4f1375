"""The features of pictures: what a network's head is given, computed once and kept in the cache.

B batch, H height, W width, C channels, D features, n pictures.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from onsight.data.loader import Batch, Loader
from onsight.errors import DiskError, ModelError
from onsight.models.classifier import Classifier
from onsight.models.head import features_kept, linear_head
from onsight.tensorfile import DamagedFile, read_tensors, write_tensors

PLAIN, MIRRORED = "plain", "mirrored"

# Small batches keep a CPU's activations in its caches: 1.5 times as fast as 64 at 96 pixels.
_CPU_BATCH, _BATCH = 16, 256


def feature_loader(loader: Loader) -> Loader:
    """The same pictures in batches of the size that is best for inference."""
    small = loader.device.type == "cpu"
    return replace(loader, batch_size=_CPU_BATCH if small else _BATCH)


def compute_features(
    classifier: Classifier,
    batches: Iterable[Batch],
    view: str = PLAIN,
    progress: Callable[[int], None] = lambda done: None,
    deadline: float = math.inf,
) -> Tensor:
    """The features of every picture in order: float32 (n, D), on the CPU.

    view: as it is or mirrored left to right; progress is called with the pictures done; deadline:
    on the monotonic clock, after which only the pictures done by then are returned. Raises
    ModelError for a network that does not end in a linear layer.
    """
    parts: list[Tensor] = []
    with features_kept(classifier.net) as kept:
        for batch in batches:
            classifier(batch.images.flip(2) if view == MIRRORED else batch.images)
            parts.append(_checked(kept.pop()).float().cpu())
            progress(len(batch.ids))
            if time.monotonic() > deadline:
                break
    if not parts:
        head = linear_head(classifier.net)
        return torch.zeros(0, head.in_features if head else 0)
    with torch.no_grad():
        return torch.cat(parts).clone()  # outside inference mode: heads are trained on them


def _checked(features: Tensor) -> Tensor:
    if features.dim() != 2:
        raise ModelError(
            f"the head is given a tensor of shape {tuple(features.shape)}, not one row per picture"
        )
    return features


class FeatureStore:
    """Features kept in a cache folder by everything that went into them; None keeps nothing."""

    def __init__(self, cache_folder: Path | None) -> None:
        self.folder = cache_folder / "features" if cache_folder else None

    def get(self, key: str, compute: Callable[[], Tensor], count: int) -> Tensor:
        """The features (count, D) under a key, computed if they are not there.

        Fewer features, because there was no time for all, are not kept.
        """
        if self.folder is None:
            return compute()
        path = self.folder / f"{key}.safetensors"
        try:
            tensors, _ = read_tensors(path)
            return tensors["features"].clone()
        except (DamagedFile, KeyError):
            features = compute()
        if len(features) < count:
            return features
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, {"features": features}, {})
        except (OSError, DiskError):  # a full disk costs time in the next run, nothing else
            pass
        return features


def features_key(classifier: Classifier, digests: Tensor, view: str) -> str:
    """A digest of all that determines features: backbone, preprocessing, pictures and view.

    digests: uint8 (n, 16) of the pictures in order.
    """
    head = linear_head(classifier.net)
    own = {id(parameter) for parameter in head.parameters()} if head else set()
    digest = hashlib.sha256(repr((classifier.normalization, classifier.precision, view)).encode())
    digest.update(type(classifier.net).__name__.encode())
    for name, tensor in classifier.net.state_dict(keep_vars=True).items():
        if id(tensor) not in own:
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(digests.contiguous().numpy().data)
    return digest.hexdigest()[:32]
