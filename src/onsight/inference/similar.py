"""`onsight similar`: the images of DATA that look most like others, by a network's features.

C channels, D features, H height, W width, n images to search, q queries.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onsight.data.cache import find_cache_folder
from onsight.data.decode import pixel_digest, prepare_image
from onsight.data.loader import Images, Loader
from onsight.data.pack import Pack
from onsight.data.pixels import Pixels
from onsight.data.sources.find import ReadOptions, find_source
from onsight.data.sources.folder import read_unlabelled
from onsight.data.sources.read_file import read_regular_file
from onsight.data.sources.source import Source
from onsight.errors import ConfigError, DataError, MissingDataset
from onsight.evaluation.predictions import BATCH_SIZE
from onsight.features.feature_pass import (
    FeatureStore,
    compute_features,
    feature_loader,
    features_key,
)
from onsight.features.neighbours import find_nearest
from onsight.files import check_output, refuse_replacing
from onsight.inference.held_out import open_model_pack, training_source
from onsight.inference.inputs import list_files
from onsight.inference.predictor import Prediction, Predictor, list_model_files, load
from onsight.inference.row_formats import RowCounts
from onsight.inference.sinks import write_to_stdout
from onsight.models.file import image_keys
from onsight.models.head import require_head
from onsight.report.console import Reporter
from onsight.text import one_line, plural

_MAX_WARNINGS = 3  # images that cannot be searched


@dataclass(frozen=True)
class Neighbour:
    """An image that is similar to a query."""

    path: str  # or its name within DATA, if it is not a file
    label: str | None  # None if DATA has no labels
    similarity: float  # cosine of centred features, -1 to 1
    identical: bool  # the same pixels as the query
    pixels: Pixels  # uint8 (H, W, C), as the network receives them


Answer = tuple[Prediction, list[Neighbour]]  # a query and its neighbours, most similar first


@dataclass(frozen=True)
class SearchSet:
    """Images to search, with their features."""

    name: str  # description for messages
    source: Source
    pack: Pack
    ids: Tensor  # int64 (n,): the numbers of the images in the pack
    features: Tensor  # float (n, D)

    def nearest(self, queries: Sequence[Prediction], count: int) -> list[list[Neighbour]]:
        """Return the most similar images for each query, which must be a file and have features."""
        features = np.array([query.features for query in queries], np.float32)
        matches = zip(self.search(features, count), map(self._digest, queries), strict=True)
        return [[self.neighbour(*pair, digest) for pair in pairs] for pairs, digest in matches]

    def search(self, features: NDArray[np.float32], count: int) -> list[list[tuple[int, float]]]:
        """Return (image number, similarity) of the best matches for each row of features (q, D)."""
        rows, similarities = find_nearest(torch.from_numpy(features), self.features, count)
        numbers = self.ids[rows]
        return [
            list(zip(*pair, strict=True))
            for pair in zip(numbers.tolist(), similarities.tolist(), strict=True)
        ]

    def neighbour(self, image: int, similarity: float, digest: bytes = b"") -> Neighbour:
        """Return an image of the search set; digest: of the query's pixels, to spot a copy."""
        index = self.pack.index
        return Neighbour(
            path=_find_path(self.source, index.locators[image]),
            label=index.classes[index.labels[image]] or None,
            similarity=similarity,
            identical=self.pack.digests[image].tobytes() == digest,
            pixels=self.pack.pixels[self.pack.rows[image]],
        )

    def _digest(self, query: Prediction) -> bytes:
        content = read_regular_file(query.path)
        return pixel_digest(prepare_image(content, self.pack.format)[0])


def print_similar(
    model: Path,
    paths: Sequence[str],
    *,
    among: str | None = None,
    top: int = 5,
    grid: Path | None = None,
    device: str = "auto",
    data_format: str = "auto",
    cache_folder: str = "",
    module: str | nn.Module | None = None,
    member: str = "",
    as_json: bool = False,
) -> None:
    """Find and print the most similar images for every input, in order.

    grid: a PNG file for the first of them. Raises DataError if no input can be used;
    UserError, DiskError.
    """
    if top < 1:
        raise ConfigError(f"--top {top} must be at least 1")
    reporter = Reporter()
    if grid:
        from onsight.inference.grid import check_grid_name, save_similar_grid  # loads matplotlib

        check_grid_name(grid)
    inputs = list_files(paths)
    if grid:
        read = [*paths, *inputs]
        check_output("--save-grid", grid, model=list_model_files(model), input=read, data=among)
    predictor = load(model, device=device, module=module, member=member)
    queries = list(predictor.predictions(inputs, features=True))
    counts = RowCounts()
    counts.add(queries)
    counts.require_used()
    search_set = open_search_set(
        predictor,
        model,
        among,
        data_format=data_format,
        cache_folder=cache_folder,
        reporter=reporter,
    )
    if grid:
        refuse_replacing("--save-grid", grid, data=search_set.source.files())
    answers = _answer(queries, search_set, top)
    reporter.say(f"{plural(len(search_set.ids), 'image')} searched: {search_set.name}")
    if as_json:
        rows = [_as_json(*answer) for answer in answers]
        _print(json.dumps({"images": len(search_set.ids), "similar": rows}))
    else:
        _print("\n".join(_as_lines(answers)))
    if grid:
        shown = save_similar_grid(grid, answers, predictor.format)
        reporter.say(f"{grid} shows the first {shown:,} of {len(answers):,} inputs")


def open_search_set(
    predictor: Predictor,
    model: Path,
    among: str | None,
    *,
    data_format: str = "auto",
    cache_folder: str = "",
    reporter: Reporter,
) -> SearchSet:
    """Open the images to search and compute their features, which are cached.

    model: where the predictor was loaded from.
    among: a folder of images, or any DATA; None for the images that the model was trained or
    selected with. Raises DataError, ModelError, DiskError.
    """
    require_head(predictor.classifier.feature_member.net)
    cache = find_cache_folder(cache_folder)
    if among is None:
        source = _open_training_source(predictor, model, cache)
    else:
        source = _open_source(among, data_format, cache)
    reporter.say(f"data: {source.description}")
    if note := predictor.feature_note():
        reporter.say(note)
    pack = open_model_pack(source, predictor, cache, reporter)
    for problem in [*source.problems, *pack.problems][:_MAX_WARNINGS]:
        reporter.warn(f"not searched: {problem.path}: {problem.reason}")
    if among is None:
        name = "images that the model was trained or selected with"
        numbers = np.flatnonzero(np.isin(image_keys(pack.digests), predictor.file.seen))
        if len(numbers) == 0:
            raise DataError(
                f"{source.root} has changed: it has none of the images that the model was trained "
                "with. Name the images to search: --among FOLDER"
            )
    else:
        name = among
        numbers = np.arange(len(pack))
    ids = torch.from_numpy(numbers)
    return SearchSet(name, source, pack, ids, _features(predictor, pack, ids, cache, reporter))


def _open_training_source(predictor: Predictor, model: Path, cache: Path | None) -> Source:
    try:
        return training_source(predictor, model, cache)
    except DataError as error:
        raise DataError(
            f"the images that the model was trained with cannot be searched: {error}\n"
            "Name others: --among FOLDER"
        ) from error


def _open_source(among: str, data_format: str, cache: Path | None) -> Source:
    """Open DATA, or a folder of images that are not in class folders."""
    try:
        return find_source(among, ReadOptions(data_format), cache)
    except MissingDataset:
        raise
    except DataError:
        if data_format != "auto" or not Path(among).is_dir():
            raise
        return read_unlabelled(Path(among))


def _features(
    predictor: Predictor, pack: Pack, ids: Tensor, cache: Path | None, reporter: Reporter
) -> Tensor:
    """Return features (n, D) of the images with these numbers, from the cache if possible."""
    classifier = predictor.classifier
    loader = Loader(Images.of(pack), ids, BATCH_SIZE, classifier.device)

    def compute() -> Tensor:
        with reporter.bar("embed", len(ids)) as bar:
            batches = feature_loader(loader).in_order()
            return compute_features(classifier, batches, progress=bar.advance)

    digests = torch.from_numpy(pack.digests[ids.numpy()])
    key = features_key(classifier, predictor.format, digests)
    return FeatureStore(cache).get(key, compute, len(ids))


def _find_path(source: Source, locator: str) -> str:
    """Return the path of an image's file, or its name within DATA if it is not a file."""
    folder = source.root if source.root.is_dir() else source.root.parent
    path = folder / locator
    return str(path) if path.is_file() else locator


def _answer(queries: Sequence[Prediction], search_set: SearchSet, top: int) -> list[Answer]:
    """Search for all queries; one that cannot be used has no neighbours."""
    usable = [query for query in queries if query.problem is None]
    neighbours = iter(search_set.nearest(usable, top))
    return [(query, next(neighbours) if query.problem is None else []) for query in queries]


def _as_lines(answers: Sequence[Answer]) -> Iterator[str]:
    labels = [neighbour.label or "-" for _, neighbours in answers for neighbour in neighbours]
    width = max(map(len, labels), default=1)
    for query, neighbours in answers:
        note = query.problem or f"predicted {query.predicted}"
        yield one_line(f"{query.path}  ({note})")
        for neighbour in neighbours:
            label = f"{neighbour.label or '-':<{width}}"
            note = "  identical" if neighbour.identical else ""
            yield one_line(f"  {neighbour.similarity:6.3f}  {label}  {neighbour.path}{note}")


def _as_json(query: Prediction, neighbours: Sequence[Neighbour]) -> dict[str, object]:
    return {
        "path": query.path,
        "predicted": query.predicted,
        "problem": query.problem,
        "neighbours": [
            {
                "path": neighbour.path,
                "label": neighbour.label,
                "similarity": neighbour.similarity,
                "identical": neighbour.identical,
            }
            for neighbour in neighbours
        ],
    }


def _print(text: str) -> None:
    """Print text; a path that is not valid UTF-8 keeps its bytes."""
    write_to_stdout((text + "\n").encode("utf-8", "surrogateescape"))
