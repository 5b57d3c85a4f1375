"""The images of DATA that look most like others, by the features of a trained network.

H height, W width, C channels, D features, n images to search.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.cache import find_cache_folder
from onsight.data.loader import Images, Loader
from onsight.data.pack import Pack
from onsight.data.packing import digest_of, prepare_image
from onsight.data.pillow_pixels import Pixels
from onsight.data.sources.find import ReadOptions, find_source
from onsight.data.sources.folder import read_unlabelled
from onsight.data.sources.read_file import read_regular_file
from onsight.data.sources.source import Source
from onsight.errors import AbsentData, DataError
from onsight.evaluation.per_image import BATCH_SIZE
from onsight.features.feature_pass import (
    FeatureStore,
    compute_features,
    feature_loader,
    features_key,
)
from onsight.features.neighbours import nearest
from onsight.inference.held_out import open_model_pack, training_source
from onsight.inference.predictor import Prediction, Predictor
from onsight.models.file import image_keys
from onsight.models.head import required_head
from onsight.report.console import Reporter


@dataclass(frozen=True)
class Neighbour:
    """An image that looks like another.

    path: where it came from; label: its class, None if it has none; similarity: the cosine of
    centred features, -1 to 1; identical: a copy, with equal pixels; pixels: uint8 (H, W, C) as
    the network takes them.
    """

    path: str
    label: str | None
    similarity: float
    identical: bool
    pixels: Pixels


@dataclass(frozen=True)
class SearchSet:
    """Images to search: source and pack, int64 (n,) image numbers, float (n, D) features.

    name: what they are, in words.
    """

    name: str
    source: Source
    pack: Pack
    ids: Tensor
    features: Tensor

    def nearest(self, queries: Sequence[Prediction], count: int) -> list[list[Neighbour]]:
        """The most similar images for each query, which must have features and be a file."""
        wanted = np.array([query.features for query in queries], np.float32)
        return [
            [self.neighbour(*pair, digest) for pair in found]
            for found, digest in zip(
                self.search(wanted, count), map(self._digest, queries), strict=True
            )
        ]

    def search(self, features: NDArray[np.float32], count: int) -> list[list[tuple[int, float]]]:
        """(image number, similarity) of the most similar images for each row of (q, D)."""
        rows, similarities = nearest(torch.from_numpy(features), self.features, count)
        numbers = self.ids[rows]
        return [
            list(zip(*pair, strict=True))
            for pair in zip(numbers.tolist(), similarities.tolist(), strict=True)
        ]

    def _digest(self, query: Prediction) -> bytes:
        content = read_regular_file(query.path)
        return digest_of(prepare_image(content, self.pack.format)[0])

    def neighbour(self, image: int, similarity: float, digest: bytes = b"") -> Neighbour:
        """An image that was found. digest: of the image that it looks like, if known."""
        index = self.pack.index
        return Neighbour(
            path=_place(self.source, index.locators[image]),
            label=index.classes[index.labels[image]] or None,
            similarity=similarity,
            identical=self.pack.digests[image].tobytes() == digest,
            pixels=self.pack.pixels[self.pack.rows[image]],
        )


def open_search_set(
    predictor: Predictor,
    among: str | None,
    *,
    data_format: str = "auto",
    cache_folder: str = "",
    reporter: Reporter,
) -> SearchSet:
    """The images to search with their features, which are kept in the cache.

    among: a folder of images or any DATA; None for the images that the model was trained or
    selected with. Raises DataError, ModelError, DiskError.
    """
    required_head(predictor.classifier.net)
    kept = find_cache_folder(cache_folder)
    if among is None:
        source = _training_source(predictor, kept)
    else:
        source = _source(among, data_format, kept)
    reporter.say(f"data: {source.description}")
    pack = open_model_pack(source, predictor, kept, reporter)
    for problem in [*source.problems, *pack.problems][:3]:
        reporter.warn(f"not searched: {problem.path}: {problem.reason}")
    taken = np.arange(len(pack))
    name = among or "images that the model was trained or selected with"
    if among is None:
        taken = np.flatnonzero(np.isin(image_keys(pack.digests), predictor.file.seen))
        if len(taken) == 0:
            raise DataError(
                f"{source.root} has changed: the model knows none of its images. "
                "Name the images to search: --among FOLDER"
            )
    ids = torch.from_numpy(taken)
    return SearchSet(name, source, pack, ids, _features(predictor, pack, ids, kept, reporter))


def _training_source(predictor: Predictor, kept: Path | None) -> Source:
    """DATA of the run that made the model. Raises DataError."""
    try:
        return training_source(predictor, kept)
    except DataError as error:
        raise DataError(
            f"the images that the model was trained with cannot be searched: {error}\n"
            "Name others: --among FOLDER"
        ) from error


def _source(among: str, data_format: str, kept: Path | None) -> Source:
    """DATA, or a folder of images that are not in class folders."""
    try:
        return find_source(among, ReadOptions(data_format), kept)
    except AbsentData:
        raise
    except DataError:
        if data_format != "auto" or not Path(among).is_dir():
            raise
        return read_unlabelled(Path(among))


def _features(
    predictor: Predictor, pack: Pack, ids: Tensor, kept: Path | None, reporter: Reporter
) -> Tensor:
    classifier = predictor.classifier
    loader = Loader(Images.of(pack), ids, BATCH_SIZE, classifier.device)

    def compute() -> Tensor:
        with reporter.bar("embed", len(ids)) as bar:
            batches = feature_loader(loader).in_order()
            return compute_features(classifier, batches, progress=bar.advance)

    digests = torch.from_numpy(pack.digests[ids.numpy()])
    key = features_key(classifier, predictor.format, digests)
    return FeatureStore(kept).get(key, compute, len(ids))


def _place(source: Source, locator: str) -> str:
    """The path of an image's file, or its place within DATA."""
    folder = source.root if source.root.is_dir() else source.root.parent
    path = folder / locator
    return str(path) if path.is_file() else locator
