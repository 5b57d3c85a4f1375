"""DATA made ready for training: decoded and split, with every image accounted for."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.fit import ImageFormat
from onsight.data.folds import USUAL_FOLDS, assign_folds, choose_folds
from onsight.data.index import SPLIT_NAMES, TEST, TRAIN, VALIDATION, Problem
from onsight.data.loader import BatchSource, Images
from onsight.data.pack import Pack, open_pack
from onsight.data.packing import Job, Progress
from onsight.data.shards.order import estimate_open_files
from onsight.data.sources.source import DRAW_STAGE, Source, count_held_out
from onsight.data.split import leaks
from onsight.data.split_units import SplitUnits, split_units
from onsight.data.stream import Stream
from onsight.errors import ConfigError, DataError
from onsight.words import data_size, listed, plural

_SMALL = 64  # pixels; data no larger than this keeps its own size
USUAL_SIZE = (64, 64)  # pixels, where images differ in size or are large
_THUMBNAIL = 64  # pixels of the longer side where images are streamed
_ROOM = 8 / 7  # packed side over input side; usually 256 for 224
LEAST_PER_CLASS = 4  # training images; with fewer, a refusal says more than a model
_ANY_FOLDS = Choice(USUAL_FOLDS, "the usual number")


@dataclass(frozen=True)
class Dataset:
    """Usable images with their split.

    images: where batches come from, the pack or, when streaming, the source; format: how
    evaluation and prediction prepare an image; packed_size: (height, width) of the pack, with
    the reason; splits: int8 (n,), 0 for images left out; problems: everything that is not used,
    with reasons; files: how many images the source lists; notes: what the user should know;
    folds: how many, 1 if a test part is held out; fold: int8 (n,), from 1, or 0 for none; units:
    what the split keeps together.
    """

    pack: Pack
    images: BatchSource
    format: ImageFormat
    packed_size: Choice[tuple[int, int]]
    splits: NDArray[np.int8]
    problems: list[Problem]
    files: int
    notes: list[str]
    folds: Choice[int]
    fold: NDArray[np.int8]
    units: SplitUnits

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by number."""
        return self.pack.index.classes

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the model's input; images may be packed larger, with room for crops."""
        return self.format.channels, *self.format.shown

    def ids(self, split: int) -> Tensor:
        """Image numbers of a split: int64 (m,), on the CPU; shard by shard if these are read."""
        numbers = np.flatnonzero(self.splits == split)
        if self.images.shards_of(torch.from_numpy(numbers)) is not None:
            numbers = numbers[np.argsort(self.pack.sources[numbers], kind="stable")]
        return torch.from_numpy(numbers)

    def counts(self, split: int) -> NDArray[np.int64]:
        """Images of each class in a split: (K,)."""
        labels = self.pack.index.labels[self.splits == split]
        return np.bincount(labels, minlength=len(self.classes)).astype(np.int64)

    def without_fold(self, fold: int) -> "Dataset":
        """The split in which the images of this fold are the test part."""
        return replace(self, splits=np.where(self.fold == fold, np.int8(TEST), self.splits))

    @property
    def used(self) -> int:
        """How many images are in a split."""
        return int((self.splits > 0).sum())


def choose_size(
    source: Source, asked: tuple[int, int] | None, preferred: tuple[int, int] | None
) -> Choice[tuple[int, int]]:
    """The (height, width) in pixels of the model's input.

    preferred: the size the model was made for, None if it takes any.
    """
    if asked:
        return Choice(asked, "as asked")
    if preferred:
        return Choice(preferred, "the size the model was made for")
    sizes = set(source.sizes)
    if len(sizes) == 1:
        (only,) = sizes
        if max(only) <= _SMALL:
            return Choice(only, "all sampled images have this size")
    return Choice(USUAL_SIZE, "images differ in size or are large (--image-size)")


def least_decoded(source: Source) -> int:
    """How many images are decoded however little time there is: all held out, and a few."""
    least = count_held_out(source) + LEAST_PER_CLASS * len(source.index.classes)
    return min(len(source.index), least)


def choose_packed_size(
    source: Source, size: tuple[int, int], config: Config
) -> Choice[tuple[int, int]]:
    """The (height, width) in pixels at which images are packed for a model's input size."""
    if config.residency == "stream":
        scale = min(1.0, _THUMBNAIL / max(size))
        small = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
        return Choice(small, "thumbnails only: images are decoded for every batch")
    if config.crop_area == 1:
        return Choice(size, "the model's input size")
    roomy = round(size[0] * _ROOM), round(size[1] * _ROOM)
    found = source.sizes
    if 2 * sum(one[0] >= roomy[0] and one[1] >= roomy[1] for one in found) < len(found):
        return Choice(size, "most sampled images have no more detail for crops")
    return Choice(roomy, "8/7 of the model's input size, so that crops keep their detail")


def make_format(config: Config, size: tuple[int, int], packed: tuple[int, int]) -> ImageFormat:
    """The format images are packed in; 0 channels means as they are stored.

    size, packed: (height, width) of the model's input and of the pack.
    """
    return ImageFormat(
        *packed,
        0 if config.channels == "auto" else int(config.channels),
        config.fit,
        config.background_rgb,
        config.pixel_limit,
        None if packed == size else size,
    )


def open_dataset(
    source: Source,
    config: Config,
    size: tuple[int, int],
    cache_folder: Path | None,
    threads: int,
    progress: Progress = lambda done: None,
    most_folds: Callable[[Pack], Choice[int]] = lambda pack: _ANY_FOLDS,
    deadline: float = math.inf,
) -> Dataset:
    """Decode (or reopen) all images of a source and split them.

    size: (height, width) of the model's input; most_folds: called for how many folds there is time
    for; deadline: on the monotonic clock, after which few but those held out are decoded. If
    config.residency is "stream" the pack holds thumbnails and the images are decoded for every
    batch. Raises DataError when nothing can be learned from them, or at the first problem
    when config.strict; ConfigError for folds that cannot be made.
    """
    faults = [problem for problem in source.problems if problem.stage != DRAW_STAGE]
    if config.strict and faults:
        raise DataError(f"{faults[0].path}: {faults[0].reason}")
    packed_size = choose_packed_size(source, size, config)
    target = make_format(config, size, packed_size.value)
    least = least_decoded(source)
    job = Job(source, target, config.strict, threads, progress, deadline, least)
    pack = open_pack(job, cache_folder)
    given = pack.index.splits
    units = split_units(source, pack, config, cache_folder)
    folds = choose_folds(
        config, pack.digests, pack.index, lambda: most_folds(pack), units.times is not None
    )
    tested = config.test_fraction if folds.value == 1 else 0.0
    splits = units.assign(given, config.validation_fraction, tested)
    leaked = leaks(units.near, splits)
    identical = leaks(pack.digests, splits)
    left_out = [_leak(pack, int(row), identical[row]) for row in np.flatnonzero(leaked)]
    splits[leaked] = 0
    images, shown = _batch_source(pack, source, config, threads)
    dataset = Dataset(
        pack=pack,
        images=images,
        format=shown,
        packed_size=packed_size,
        splits=splits,
        problems=[*source.problems, *pack.problems, *left_out],
        files=len(source.index) + len(source.problems),
        notes=[],
        folds=folds,
        fold=_folds_of(pack, units.digests, splits, folds.value),
        units=units,
    )
    dataset.notes.extend(_notes(dataset, source))
    _refuse_unlearnable(dataset, source)
    return dataset


def _folds_of(
    pack: Pack, units: NDArray[np.uint8], splits: NDArray[np.int8], folds: int
) -> NDArray[np.int8]:
    """The fold of each image that is used."""
    fold = np.zeros(len(splits), np.int8)
    if folds > 1:
        used = splits > 0
        fold[used] = assign_folds(units[used], pack.index.labels[used], folds)
    return fold


def _batch_source(
    pack: Pack, source: Source, config: Config, threads: int
) -> tuple[BatchSource, ImageFormat]:
    """Where batches come from, and how evaluation prepares each image."""
    if config.residency != "stream":
        return Images.of(pack), pack.format
    _check_room(source)
    height, width = pack.format.shown
    shown = replace(pack.format, height=height, width=width, input_size=None)
    labels = torch.from_numpy(pack.index.labels).long()
    return Stream(source, pack.sources, labels, shown, config.crop_area, threads), shown


def _check_room(source: Source) -> None:
    """Raise ConfigError if copies of the shards that an epoch reads at once have no room."""
    shards = source.shards
    if shards is None:
        return
    at_once = estimate_open_files(shards.file_of_part)
    needed = at_once * shards.copies.largest_bytes
    if needed > shards.copies.limit_bytes:
        raise ConfigError(
            f"an epoch reads {plural(at_once, 'shard')} at a time, {data_size(needed)}, but only "
            f"{data_size(int(shards.copies.limit_bytes))} are for copies of them: raise "
            "--shard-cache-gigabytes, free some space, or write smaller shards with `onsight shard`"
        )


def split_sentence(dataset: Dataset) -> str:
    """How many images each split has, and how many problems, in words."""
    parts = [
        f"{int((dataset.splits == split).sum()):,} {SPLIT_NAMES[split]}"
        for split in (TRAIN, VALIDATION, TEST)
    ]
    if dataset.folds.value > 1:
        parts[2] = f"all judged in {dataset.folds.value} folds"
    return f"{', '.join(parts)}; {dataset.used:,} used + {len(dataset.problems):,} problems"


def _leak(pack: Pack, row: int, is_identical: bool) -> Problem:
    what = "identical to" if is_identical else "a near-duplicate of"
    return Problem(
        pack.index.locators[row],
        "split",
        f"{what} an image held out for testing or validation; left out of training",
    )


def _notes(dataset: Dataset, source: Source) -> list[str]:
    notes = list(source.notes)
    gone = sorted(set(source.index.classes) - set(dataset.classes))
    if gone:
        notes.append(f"classes without a usable image, left out: {listed(gone)}")
    in_folds = dataset.folds.value > 1
    train, test = dataset.counts(TRAIN), dataset.counts(TEST)
    unlearned = [name for name, count in zip(dataset.classes, train, strict=True) if count == 0]
    if unlearned:
        notes.append(
            f"classes without a training image, which cannot be learned: {listed(unlearned)}; "
            "add images, or provide a split"
        )
    total = train + test + dataset.counts(VALIDATION)
    judged = total if in_folds else test
    few = [
        f"{name} ({tested} of {count})"
        for name, count, tested in zip(dataset.classes, total, judged, strict=True)
        if tested < 5
    ]
    if few and judged.any():
        kind = "" if in_folds else "test "
        notes.append(f"classes with fewer than 5 {kind}images, too few to judge: {listed(few)}")
    conflicts = _conflicting(dataset.pack)
    if conflicts:
        notes.append(f"{conflicts:,} identical images have different labels")
    return notes


def _conflicting(pack: Pack) -> int:
    """How many images have an identical copy under another label."""
    same = (pack.digests[1:] == pack.digests[:-1]).all(axis=1)
    differs = same & (pack.index.labels[1:] != pack.index.labels[:-1])
    marked = np.zeros(len(pack), bool)
    marked[1:] |= differs
    marked[:-1] |= differs
    return int(marked.sum())


def _boxes_hint(problems: Sequence[Problem]) -> str:
    """What to try if annotations lie among the images; empty if none do."""
    paths = (problem.path for problem in problems)
    found = next((path for path in paths if path.lower().endswith((".json", ".xml"))), None)
    return f" If {found} has boxes: --crop-boxes makes an image of each." if found else ""


def _refuse_unlearnable(dataset: Dataset, source: Source) -> None:
    if len(dataset.classes) < 2:
        raise DataError(
            f"only one class ('{dataset.classes[0]}') has usable images in {source.root}; "
            "a classifier needs at least two; in folders, each has one of its own."
            f"{_boxes_hint(dataset.problems)}"
        )
    learned = int((dataset.counts(TRAIN) > 0).sum())
    if learned < 2:
        raise DataError(
            f"{dataset.used:,} images leave only {plural(learned, 'class', 'classes')} to train "
            "on; add images, or lower --validation-fraction and --test-fraction"
        )


def problem_summary(problems: list[Problem], most: int = 5) -> list[tuple[str, int]]:
    """The most common reasons with their counts."""
    return Counter(problem.reason for problem in problems).most_common(most)
