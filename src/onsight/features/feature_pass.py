"""Features of images, the input of a network's head: computed once, cached and shared.

B batch, H height, W width, C channels, D features, K classes, n images.
"""

import hashlib
import math
import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from onsight.data import decode
from onsight.data.fit import ImageFormat
from onsight.data.loader import Batch, Loader
from onsight.errors import DiskError
from onsight.models.classifier import ImageClassifier
from onsight.models.head import (
    capturing_features,
    feature_size,
    find_head,
    no_feature_error,
    require_head,
)
from onsight.tensorfile import DamagedFile, read_tensors, write_tensors

PLAIN, MIRRORED = "plain", "mirrored"

# On a CPU, small batches keep the activations in its caches: 16 is 1.5 times as fast as 64 for
# images of 96 pixels; smaller images are faster in larger batches (NOTEBOOK.md).
_CPU_BATCH, _CPU_BATCH_PIXELS, _BATCH = 16, 16 * 96 * 96, 256

_MAX_CACHE_BYTES = 4_000_000_000


def feature_loader(loader: Loader) -> Loader:
    """Return a loader of the same images whose batch size is best for inference."""
    batch_size = _BATCH
    if loader.device.type == "cpu":
        height, width, _ = loader.images.shape
        multiple = _CPU_BATCH_PIXELS // (_CPU_BATCH * height * width)
        batch_size = min(_BATCH, _CPU_BATCH * max(1, multiple))
    return replace(loader, batch_size=batch_size)


def compute_features(
    classifier: ImageClassifier,
    batches: Iterable[Batch],
    view: str = PLAIN,
    progress: Callable[[int], None] = lambda done: None,
    deadline: float = math.inf,
    for_head: bool = False,
) -> Tensor:
    """Compute the features of every image.

    Args:
        classifier: The network and its preprocessing.
        view: PLAIN, or MIRRORED to flip images left to right.
        progress: Called with the number of images of each batch.
        deadline: Time on the monotonic clock at which to stop.
        for_head: Compute all inputs of the head, which may be on several layers, in float16.

    Returns:
        The features in order, (n, D) on the CPU. Images that the deadline left no time for are
        missing at the end.

    Raises:
        ModelError: If the network does not end in a linear layer.
    """
    member = classifier.feature_member
    parts: list[Tensor] = []
    for batch in batches:
        images = batch.images.flip(2) if view == MIRRORED else batch.images
        features = logits_and_features(member, images, for_head)[1].cpu()
        parts.append(_halve(features) if for_head else features)
        progress(len(batch.ids))
        if time.monotonic() > deadline:
            break
    if not parts:
        if for_head:
            width = require_head(member.net).in_features
            return torch.zeros(0, width, dtype=torch.float16)
        return torch.zeros(0, feature_size(member.net))
    with torch.no_grad():
        return torch.cat(parts).clone()  # not an inference tensor, so that heads can be trained


def logits_and_features(
    classifier: ImageClassifier, images: Tensor, for_head: bool = False
) -> tuple[Tensor, Tensor]:
    """Return logits (B, K) and float32 features (B, D) of uint8 images (B, H, W, C).

    Args:
        classifier: Computes the logits; the features are those of its feature member.
        for_head: Return all inputs of the head, not only the features of the last layer.

    Raises:
        ModelError: If the network does not end in a linear layer.
    """
    net = classifier.feature_member.net
    head = require_head(net)
    with capturing_features(net, head if for_head else None) as captured:
        logits = classifier(images)
    # There are several parts if memory ran out. The last linear layer may also be in the middle of
    # the network, in which case there are no features.
    rows = sum(len(part) for part in captured)
    is_flat = all(part.dim() == 2 for part in captured)
    if rows != len(images) or not is_flat or head.out_features != logits.shape[1]:
        raise no_feature_error(net)
    return logits, torch.cat(captured).float()


def features_key(
    classifier: ImageClassifier,
    target: ImageFormat,
    digests: Tensor,
    view: str = PLAIN,
    for_head: bool = False,
) -> str:
    """Return a digest of everything that determines features.

    Args:
        classifier: Its feature member has the backbone, the normalization and the precision.
        target: The format that images are converted to.
        digests: Digests of the decoded images in order, uint8 (n, 16).
        view: PLAIN or MIRRORED.
        for_head: Whether all inputs of the head are computed.
    """
    member = classifier.feature_member
    head = find_head(member.net)
    head_parameters = {id(parameter) for parameter in head.parameters()} if head else set()
    prepared = decode.VERSION, target.facts(), member.normalization, member.precision
    kernels = torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    devices = sorted({parameter.device.type for parameter in member.net.parameters()})
    digest = hashlib.sha256(repr((prepared, kernels, devices, view, for_head)).encode())
    digest.update(type(member.net).__name__.encode())
    for name, tensor in member.net.state_dict(keep_vars=True).items():
        if id(tensor) not in head_parameters:
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(digests.contiguous().numpy().data)
    return digest.hexdigest()[:32]


class FeatureStore:
    """A cache of features by `features_key`, which removes the least recently used above 4 GB.

    Args:
        cache_folder: The cache folder of Onsight. With None, nothing is stored.
    """

    def __init__(self, cache_folder: Path | None) -> None:
        self.folder = cache_folder / "features" if cache_folder else None

    def get(self, key: str, compute: Callable[[], Tensor], count: int) -> Tensor:
        """Return the features of a key, computing and storing them if they are missing.

        Args:
            compute: Returns features (m, D).
            count: The number of images. If m is smaller, because time ran out, the features are
                not stored.
        """
        features = self.find(key)
        if features is None:
            features = compute()
            if len(features) == count:
                self._store(key, features)
        return features

    def find(self, key: str) -> Tensor | None:
        """Return the features of a key, or None if they are missing."""
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            tensors, _ = read_tensors(path)
            # A copy is aligned like tensors that torch computes; otherwise the last bits of sums
            # may differ.
            features = tensors["features"].clone()
        except (DamagedFile, KeyError):
            return None
        with suppress(OSError):  # the folder may be read-only
            path.touch()  # the oldest files are removed first
        return features

    def _store(self, key: str, features: Tensor) -> None:
        if self.folder is None or features.nbytes > _MAX_CACHE_BYTES:
            return
        with suppress(OSError, DiskError):  # a full disk only costs time in the next run
            write_tensors(self._path(key), {"features": features}, {})
            self._remove_oldest()

    def _remove_oldest(self) -> None:
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


@dataclass
class FeatureWork:
    """How many images' features a run has computed, counting each view, and how long it took."""

    images: int = 0
    seconds: float = 0.0

    @property
    def images_per_second(self) -> float | None:
        """The speed, or None if all features were cached."""
        return self.images / self.seconds if self.images else None


class SharedFeatures:
    """Features in memory by image number, shared by the trainings of a run, such as its folds.

    Attributes:
        are_all_needed: Whether those of every image are needed anyway, so that leaving some out of
            a training saves no time.
        rows: Features (N, D) of each kind by image number; NaN for images that are missing.
        work: What it took to compute them, by network.
    """

    def __init__(self) -> None:
        self.are_all_needed = False
        self.rows: dict[Hashable, Tensor] = {}
        self.work: dict[Hashable, FeatureWork] = {}

    def get(self, kind: Hashable, ids: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return features of images, computing those that are missing.

        Args:
            kind: Everything that determines features besides the image.
            ids: Image numbers, int64 (n,).
            compute: Returns the features of some images by number, or of the first of them if
                time runs out.

        Returns:
            Features (m, D). If time ran out, m is smaller than n.
        """
        rows = self.rows.get(kind)
        known = torch.zeros(len(ids), dtype=torch.bool) if rows is None else self._has(rows, ids)
        missing = ids[~known]
        if len(missing):
            computed = compute(missing)
            rows = self._add(kind, missing[: len(computed)], computed)
        if rows is None:
            return compute(ids)  # of no images, which have the shape (0, D)
        is_usable = self._has(rows, ids).long().cumprod(0).bool()  # before the first missing image
        return rows[ids[is_usable]]

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


def _halve(features: Tensor) -> Tensor:
    """Convert features to float16, which takes half the memory."""
    limit = torch.finfo(torch.float16).max
    return features.clamp(-limit, limit).half()
