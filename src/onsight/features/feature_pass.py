"""The features of images, the input of a network's head: computed once, cached and shared.

B batch, H height, W width, C channels, D features, K classes, n images.
"""

import hashlib
import math
import time
from collections.abc import Callable, Hashable, Iterable
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
from onsight.models.head import capturing_features, find_head, no_feature_error, require_head
from onsight.tensorfile import DamagedFile, read_tensors, write_tensors

PLAIN, MIRRORED = "plain", "mirrored"

# Small batches keep a CPU's activations in its caches: 1.5 times as fast as 64 at 96 pixels.
_CPU_BATCH, _BATCH = 16, 256

_MAX_CACHE_BYTES = 4_000_000_000


def feature_loader(loader: Loader) -> Loader:
    """Return the same images in batches of the size that is best for inference."""
    is_cpu = loader.device.type == "cpu"
    return replace(loader, batch_size=_CPU_BATCH if is_cpu else _BATCH)


def compute_features(
    classifier: Classifier,
    batches: Iterable[Batch],
    view: str = PLAIN,
    progress: Callable[[int], None] = lambda done: None,
    deadline: float = math.inf,
) -> Tensor:
    """Compute the features of every image in order: float32 (n, D), on the CPU.

    view: PLAIN, or MIRRORED left to right; progress: called with numbers of images done; deadline:
    on the monotonic clock, after which only the images done by then are returned. Raises
    ModelError for a network that does not end in a linear layer.
    """
    parts: list[Tensor] = []
    for batch in batches:
        images = batch.images.flip(2) if view == MIRRORED else batch.images
        parts.append(logits_and_features(classifier, images)[1].cpu())
        progress(len(batch.ids))
        if time.monotonic() > deadline:
            break
    if not parts:
        return torch.zeros(0, require_head(classifier.net).in_features)
    with torch.no_grad():
        return torch.cat(parts).clone()  # outside inference mode: heads are trained on them


def logits_and_features(classifier: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (B, K) of uint8 images (B, H, W, C), and their float32 features (B, D).

    Raises ModelError for a network that does not end in a linear layer.
    """
    net = classifier.net
    head = require_head(net)
    with capturing_features(net) as captured:
        logits = classifier(images)
    # One row per image, in as many parts as memory demands; the last linear layer may also be in
    # the middle of a network, which then has no head.
    rows = sum(len(part) for part in captured)
    is_flat = all(part.dim() == 2 for part in captured)
    if rows != len(images) or not is_flat or head.out_features != logits.shape[1]:
        raise no_feature_error(net)
    return logits, torch.cat(captured).float()


def features_key(
    classifier: Classifier, target: ImageFormat, digests: Tensor, view: str = PLAIN
) -> str:
    """Return a digest of all that determines features: backbone, preprocessing, images and view.

    target: the format that images are fitted to; digests: uint8 (n, 16) of the images in order,
    before they are fitted.
    """
    head = find_head(classifier.net)
    head_parameters = {id(parameter) for parameter in head.parameters()} if head else set()
    prepared = decode.VERSION, target.facts(), classifier.normalization, classifier.precision
    digest = hashlib.sha256(repr((prepared, view)).encode())
    digest.update(type(classifier.net).__name__.encode())
    for name, tensor in classifier.net.state_dict(keep_vars=True).items():
        if id(tensor) not in head_parameters:
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(digests.contiguous().numpy().data)
    return digest.hexdigest()[:32]


class FeatureStore:
    """Features in a cache folder, by everything that went into them; None stores nothing.

    If they exceed 4 GB, the least recently used are removed.
    """

    def __init__(self, cache_folder: Path | None) -> None:
        self.folder = cache_folder / "features" if cache_folder else None

    def get(self, key: str, compute: Callable[[], Tensor], count: int) -> Tensor:
        """Return the features (count, D) under a key, computing them if they are not there.

        Fewer features, because there was no time for all, are not stored.
        """
        features = self.find(key)
        if features is None:
            features = compute()
            if len(features) == count:
                self._store(key, features)
        return features

    def find(self, key: str) -> Tensor | None:
        """Return the features under a key, None if they are not there."""
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            tensors, _ = read_tensors(path)
            # Aligned like the tensors that torch computes, or the last bits of sums may differ.
            features = tensors["features"].clone()
            path.touch()  # files are removed by age
        except (DamagedFile, KeyError, OSError):
            return None
        return features

    def _store(self, key: str, features: Tensor) -> None:
        if self.folder is None or features.nbytes > _MAX_CACHE_BYTES:
            return
        # A full disk costs time in the next run, nothing else.
        with suppress(OSError, DiskError):
            write_tensors(self._path(key), {"features": features}, {})
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        """Remove the oldest features, because every training run adds more."""
        assert self.folder is not None
        files = [(path, path.stat()) for path in self.folder.glob("*.safetensors")]
        room = _MAX_CACHE_BYTES
        for path, stat in sorted(files, key=lambda file: file[1].st_mtime_ns, reverse=True):
            room -= stat.st_size
            if room < 0:
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.safetensors"


class SharedFeatures:
    """Features that several fits in one run share, such as its folds, by image number.

    Each is computed when it is first needed.
    """

    def __init__(self) -> None:
        self.rows: dict[Hashable, Tensor] = {}

    def get(self, kind: Hashable, ids: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the features (m, D) of images ids (n,); m < n if compute had no time for all.

        kind: all that determines features besides the image; compute(ids) returns the features
        of the first of these images.
        """
        rows = self.rows.get(kind)
        known = torch.zeros(len(ids), dtype=torch.bool) if rows is None else self._has(rows, ids)
        missing = ids[~known]
        if len(missing):
            computed = compute(missing)
            rows = self._add(kind, missing[: len(computed)], computed)
        if rows is None:
            return compute(ids)  # features of no images: shape (0, D)
        usable = self._has(rows, ids).long().cumprod(0).bool()  # rows before the first missing one
        return rows[ids[usable]]

    def _has(self, rows: Tensor, ids: Tensor) -> Tensor:
        inside = ids < len(rows)
        return inside & ~rows[ids.clamp(max=len(rows) - 1), 0].isnan()

    def _add(self, kind: Hashable, ids: Tensor, features: Tensor) -> Tensor:
        rows = self.rows.get(kind)
        count = max(len(rows) if rows is not None else 0, int(ids.max()) + 1 if len(ids) else 0)
        grown = features.new_full((count, features.shape[1]), torch.nan)
        if rows is not None:
            grown[: len(rows)] = rows
        grown[ids] = features
        self.rows[kind] = grown
        return grown
