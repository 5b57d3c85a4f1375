"""The features of images: what a network's head is given, computed once and kept in the cache.

B batch, H height, W width, C channels, D features, n images.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from onsight.data import decode
from onsight.data.fit import ImageFormat
from onsight.data.loader import Batch, Loader
from onsight.errors import DiskError
from onsight.models.classifier import Classifier
from onsight.models.head import features_kept, head_of, no_features, required_head
from onsight.tensorfile import DamagedFile, read_tensors, write_tensors

PLAIN, MIRRORED = "plain", "mirrored"

# Small batches keep a CPU's activations in its caches: 1.5 times as fast as 64 at 96 pixels.
_CPU_BATCH, _BATCH = 16, 256

_MOST_BYTES = 4_000_000_000


def feature_loader(loader: Loader) -> Loader:
    """The same images in batches of the size that is best for inference."""
    small = loader.device.type == "cpu"
    return replace(loader, batch_size=_CPU_BATCH if small else _BATCH)


def compute_features(
    classifier: Classifier,
    batches: Iterable[Batch],
    view: str = PLAIN,
    progress: Callable[[int], None] = lambda done: None,
    deadline: float = math.inf,
) -> Tensor:
    """The features of every image in order: float32 (n, D), on the CPU.

    view: as it is or mirrored left to right; progress is called with the images done; deadline:
    on the monotonic clock, after which only the images done by then are returned. Raises
    ModelError for a network that does not end in a linear layer.
    """
    parts: list[Tensor] = []
    for batch in batches:
        images = batch.images.flip(2) if view == MIRRORED else batch.images
        parts.append(with_features(classifier, images)[1].cpu())
        progress(len(batch.ids))
        if time.monotonic() > deadline:
            break
    if not parts:
        return torch.zeros(0, required_head(classifier.net).in_features)
    with torch.no_grad():
        return torch.cat(parts).clone()  # outside inference mode: heads are trained on them


def with_features(classifier: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, K) of uint8 images (B, H, W, C), and the float32 features (B, D) behind them.

    Raises ModelError for a network that does not end in a linear layer.
    """
    net = classifier.net
    head = required_head(net)
    with features_kept(net) as kept:
        logits = classifier(images)
    # One row per image, in as many parts as memory demands; the last linear layer may also be in
    # the middle of a network, which then has no head.
    rows = sum(len(part) for part in kept)
    is_flat = all(part.dim() == 2 for part in kept)
    if rows != len(images) or not is_flat or head.out_features != logits.shape[1]:
        raise no_features(net)
    return logits, torch.cat(kept).float()


class FeatureStore:
    """Features kept in a cache folder by everything that went into them; None keeps nothing.

    Of more than 4 GB, those are dropped that were not used for longest.
    """

    def __init__(self, cache_folder: Path | None) -> None:
        self.folder = cache_folder / "features" if cache_folder else None

    def get(self, key: str, compute: Callable[[], Tensor], count: int) -> Tensor:
        """The features (count, D) under a key, computed if they are not there.

        Fewer features, because there was no time for all, are not kept.
        """
        features = self.find(key)
        if features is None:
            features = compute()
            if len(features) == count:
                self._keep(key, features)
        return features

    def find(self, key: str) -> Tensor | None:
        """The features under a key, None if they are not there."""
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            tensors, _ = read_tensors(path)
            # Aligned as torch does for those it computes: sums may differ in their last bits.
            features = tensors["features"].clone()
            path.touch()  # what is used is kept
        except (DamagedFile, KeyError, OSError):
            return None
        return features

    def _keep(self, key: str, features: Tensor) -> None:
        if self.folder is None or features.nbytes > _MOST_BYTES:
            return
        # A full disk costs time in the next run, nothing else.
        with suppress(OSError, DiskError):
            write_tensors(self._path(key), {"features": features}, {})
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Every training has features of its own, so old ones must go."""
        assert self.folder is not None
        facts = [(path, path.stat()) for path in self.folder.glob("*.safetensors")]
        room = _MOST_BYTES
        for path, fact in sorted(facts, key=lambda one: one[1].st_mtime_ns, reverse=True):
            room -= fact.st_size
            if room < 0:
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.safetensors"


def features_key(
    classifier: Classifier, target: ImageFormat, digests: Tensor, view: str = PLAIN
) -> str:
    """A digest of all that determines features: backbone, preprocessing, images and view.

    target: what images are fitted to; digests: uint8 (n, 16) of the images in order, before
    they are fitted.
    """
    head = head_of(classifier.net)
    own = {id(parameter) for parameter in head.parameters()} if head else set()
    prepared = decode.VERSION, target.facts(), classifier.normalization, classifier.precision
    digest = hashlib.sha256(repr((prepared, view)).encode())
    digest.update(type(classifier.net).__name__.encode())
    for name, tensor in classifier.net.state_dict(keep_vars=True).items():
        if id(tensor) not in own:
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(digests.contiguous().numpy().data)
    return digest.hexdigest()[:32]
