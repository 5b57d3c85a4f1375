"""Decodes and splits the images of DATA, with a reason for every image that is not used.

n images, K classes, H height, W width, C channels.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.fit import ImageFormat
from onsight.data.index import SPLIT_NAMES, TEST, TRAIN, VALIDATION, Problem
from onsight.data.loader import BatchSource, Images
from onsight.data.pack import Pack, open_pack
from onsight.data.packing import PackJob, Progress, TimeLimit
from onsight.data.shards.order import estimate_open_files
from onsight.data.sizes import choose_packed_size, make_format
from onsight.data.sources.source import (
    DRAW_STAGE,
    Source,
    count_held_out,
    draw_order,
    is_held_out,
)
from onsight.data.split import (
    USUAL_FOLDS,
    assign_folds,
    choose_folds,
    find_leaks,
    group_identical,
)
from onsight.data.split_units import SplitUnits, find_split_units
from onsight.data.stream import StreamedImages
from onsight.errors import ConfigError, DataError
from onsight.limits import MIN_EVALUATED
from onsight.text import data_size, joined, path_ending, plural

MIN_PER_CLASS = 4  # training images; with fewer, an error is more useful than a model

_MIN_DIFFERENT = 0.8  # fraction of the images; with fewer, intervals are too narrow by over a tenth
_ANY_FOLDS = Choice(USUAL_FOLDS, "the usual number")


@dataclass(frozen=True)
class Dataset:
    """Decoded images with their split.

    Attributes:
        pack: The decoded images.
        images: The source of batches: the pack, or DATA if images are streamed.
        format: The format of images in evaluation and prediction.
        packed_size: The (height, width) of packed images.
        splits: The split of each image, (n,); 0 for images that are not used.
        problems: Files and images that are not used, with reasons.
        files: The number of images that the source lists.
        notes: Notes for the user.
        folds: The number of folds; 1 if a test set is held out.
        fold: The fold of each image, from 1 on, (n,); 0 for images without a fold.
        units: The images that stay together in the split.
        seen_before: Keys of images that the weights to start from have learned from, int64 (m,).
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
    seen_before: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by number."""
        return self.pack.index.classes

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """The shape (C, H, W) of the model's input. Packed images may be larger."""
        return self.format.channels, *self.format.model_size

    @property
    def used(self) -> int:
        """The number of images in a split."""
        return int((self.splits > 0).sum())

    @property
    def evaluated_split(self) -> int:
        """TEST, or VALIDATION if there are no test images."""
        return TEST if (self.splits == TEST).any() else VALIDATION

    @property
    def evaluated(self) -> NDArray[np.int64]:
        """The numbers of the images that the results are about, with folds all that are used."""
        if self.folds.value > 1:
            return np.flatnonzero(self.splits > 0)
        return np.flatnonzero(self.splits == self.evaluated_split)

    def at_size(self, size: tuple[int, int]) -> "Dataset":
        """Return the dataset for a network whose input has this (height, width) in pixels.

        The packed images stay as they are; they are resized to the input with each batch.
        """
        return replace(self, format=self.pack.format.for_input(size))

    def ids(self, split: int) -> Tensor:
        """Return the image ids of a split, int64 (m,).

        They are in the order of digests, so the first ones are a random sample; if shards are read,
        in the order of shards.
        """
        image_ids = np.flatnonzero(self.splits == split)
        if self.images.shards_of(torch.from_numpy(image_ids)) is not None:
            image_ids = image_ids[np.argsort(self.pack.sources[image_ids], kind="stable")]
        return torch.from_numpy(image_ids)

    def counts(self, split: int) -> NDArray[np.int64]:
        """Count the images of each class in a split: (K,)."""
        labels = self.pack.index.labels[self.splits == split]
        return np.bincount(labels, minlength=len(self.classes)).astype(np.int64)

    def holding_out_fold(self, fold: int) -> "Dataset":
        """Return a copy of the dataset whose test set is a fold."""
        return replace(self, splits=np.where(self.fold == fold, np.int8(TEST), self.splits))


def limit_decoding(source: Source, config: Config, deadline: float) -> TimeLimit:
    """Return a limit after which training images are skipped, all but a few.

    Images are decoded in a random order, in which the first ones are a sample of all splits.

    Args:
        source: The images.
        config: The settings.
        deadline: Time on the monotonic clock.
    """
    order, is_optional = draw_order(source, config.seed), ~is_held_out(source)
    is_free = is_optional[order]
    if config.train_images:  # they have been drawn in the order of the source
        order[is_free] = np.sort(order[is_free])
    is_optional[order[is_free][: MIN_PER_CLASS * len(source.index.classes)]] = False
    return TimeLimit(deadline, order, is_optional)


def open_dataset(
    source: Source,
    config: Config,
    size: tuple[int, int],
    cache_folder: Path | None,
    threads: int,
    progress: Progress = lambda done: None,
    max_folds: Callable[[Pack], Choice[int]] = lambda pack: _ANY_FOLDS,
    deadline: float = math.inf,
) -> Dataset:
    """Decode all images of a source, or reopen their pack, and split them.

    If config.residency is "stream", the pack holds thumbnails, and images are decoded again for
    every batch.

    Args:
        source: The images.
        config: The settings.
        size: The (height, width) of the model's input.
        cache_folder: The folder of packs. With None, the pack is temporary.
        threads: The number of threads.
        progress: Called with numbers of decoded images.
        max_folds: Returns the maximum number of folds for the time available.
        deadline: Time on the monotonic clock after which no more training images are decoded.

    Raises:
        DataError: If nothing can be learned from the images, or at the first problem if
            config.strict.
        ConfigError: If the requested folds cannot be made.
    """
    if is_held_out(source).all():
        names = [SPLIT_NAMES[split] for split in sorted(set(source.index.splits.tolist()))]
        raise DataError(
            f"all images in {source.root} are {joined(names)} images; add training images, "
            "or take some out of the data's own splits"
        )
    faults = [problem for problem in source.problems if problem.stage != DRAW_STAGE]
    if config.strict and faults:
        raise DataError(f"{faults[0].path}: {faults[0].reason}")
    packed_size = choose_packed_size(source, size, config)
    target = make_format(config, size, packed_size.value)
    limit = None if deadline == math.inf else limit_decoding(source, config, deadline)
    job = PackJob(source, target, config.strict, threads, progress, limit)
    pack = open_pack(job, cache_folder)
    units = find_split_units(source, pack, config, cache_folder)
    folds = choose_folds(
        config, units.digests, pack.index, lambda: max_folds(pack), units.times is not None
    )
    test_fraction = config.test_fraction if folds.value == 1 else 0.0
    index, fractions = pack.index, (config.validation_fraction, test_fraction)
    splits = units.assign(index.labels, index.splits, *fractions)
    leaked = find_leaks(units.copy_digests, splits)
    identical = find_leaks(pack.digests, splits)
    left_out = [_describe_leak(pack, int(row), identical[row]) for row in np.flatnonzero(leaked)]
    splits[leaked] = 0
    images, evaluation_format = _make_batch_source(pack, source, config, threads)
    dataset = Dataset(
        pack=pack,
        images=images,
        format=evaluation_format,
        packed_size=packed_size,
        splits=splits,
        problems=[*source.problems, *pack.problems, *left_out],
        files=len(source.index) + len(source.problems),
        notes=[],
        folds=folds,
        fold=_assign_used_folds(pack, units.digests, splits, folds.value),
        units=units,
    )
    dataset.notes.extend(_make_notes(dataset, source, test_fraction))
    _refuse_unlearnable(dataset, source)
    return dataset


def summarise_splits(dataset: Dataset) -> str:
    """Describe how images are split or cross-validated, and how many are used."""
    parts = [
        f"{int((dataset.splits == split).sum()):,} {SPLIT_NAMES[split]}"
        for split in (TRAIN, VALIDATION, TEST)
    ]
    if dataset.folds.value > 1:
        parts = [f"{dataset.folds.value}-fold cross-validation"]
    if not dataset.problems:
        return f"{', '.join(parts)}; all {dataset.used:,} used"
    return (
        f"{', '.join(parts)}; {dataset.used:,} used, {len(dataset.problems):,} not used (listed in "
        "the run's problems.csv)"
    )


def describe_problems(problems: list[Problem], limit: int = 5) -> Iterator[str]:
    """Yield a line for each of the most common reasons, with a count or the only file's name."""
    reasons = Counter(problem.reason for problem in problems).most_common()
    shown = reasons if len(reasons) == limit + 1 else reasons[:limit]
    for reason, count in shown:
        if count == 1:
            (path,) = (problem.path for problem in problems if problem.reason == reason)
            yield f"not used: {path_ending(path)}: {reason}"
        else:
            yield f"{count:,} not used: {reason}"
    if rest := sum(count for _, count in reasons[len(shown) :]):
        yield f"{rest:,} more not used, for other reasons"


def _assign_used_folds(
    pack: Pack, units: NDArray[np.uint8], splits: NDArray[np.int8], folds: int
) -> NDArray[np.int8]:
    fold = np.zeros(len(splits), np.int8)
    if folds > 1:
        used = splits > 0
        fold[used] = assign_folds(units[used], pack.index.labels[used], folds)
    return fold


def _make_batch_source(
    pack: Pack, source: Source, config: Config, threads: int
) -> tuple[BatchSource, ImageFormat]:
    """Return the source of batches, and the format of images in evaluation."""
    if config.residency != "stream":
        return Images.of(pack), pack.format
    _require_shard_room(source)
    height, width = pack.format.model_size
    target = replace(pack.format, height=height, width=width, input_size=None)
    labels = torch.from_numpy(pack.index.labels).long()
    images = StreamedImages(source, pack.sources, labels, target, config.crop_area, threads)
    return images, target


def _require_shard_room(source: Source) -> None:
    """Raise ConfigError if there is no room for copies of the shards that are open together."""
    shards = source.shards
    if shards is None:
        return
    open_files = estimate_open_files(shards.file_of_part)
    needed = open_files * shards.copies.largest_bytes
    if needed > shards.copies.limit_bytes:
        raise ConfigError(
            f"an epoch reads {plural(open_files, 'shard')} at a time, {data_size(needed)}, but "
            f"only {data_size(int(shards.copies.limit_bytes))} are available for copies of them: "
            "raise --shard-cache-gigabytes, free some space, or write smaller shards with "
            "`onsight shard`"
        )


def _describe_leak(pack: Pack, row: int, is_identical: bool) -> Problem:
    relation = "identical to" if is_identical else "a near-duplicate of"
    return Problem(
        pack.index.locators[row],
        "split",
        f"{relation} an image held out for testing or validation; left out of training",
    )


def _make_notes(dataset: Dataset, source: Source, test_fraction: float) -> list[str]:
    notes = list(source.notes)
    unused = sorted(set(source.index.classes) - set(dataset.classes))
    if unused:
        notes.append(f"classes without a usable image, left out: {joined(unused)}")
    in_folds = dataset.folds.value > 1
    train, test = dataset.counts(TRAIN), dataset.counts(TEST)
    unlearned = [name for name, count in zip(dataset.classes, train, strict=True) if count == 0]
    if unlearned:
        notes.append(
            f"classes without a training image, which cannot be learned: {joined(unlearned)}; "
            "add images, or provide a split"
        )
    total = train + test + dataset.counts(VALIDATION)
    evaluated = total if in_folds else test
    few = [
        f"{name} ({tested} of {count})"
        for name, count, tested in zip(dataset.classes, total, evaluated, strict=True)
        if tested < MIN_EVALUATED
    ]
    if test_fraction and not test.any():
        parts = plural(len(np.unique(dataset.units.digests, axis=0)), "part")
        classes = plural(len(dataset.classes), "class", "classes")
        notes.append(
            f"no image is held out for testing, as the images form only {parts} in {classes}: "
            f"{dataset.units.basis.reason}; add images, or give some the split test"
        )
    if few and evaluated.any():
        kind = "" if in_folds else "test "
        notes.append(
            f"classes with fewer than {MIN_EVALUATED} {kind}images, too few to evaluate: "
            f"{joined(few)}"
        )
    images = len(dataset.evaluated)
    different = len(group_identical(dataset.units.digests[dataset.evaluated])[1])
    if different < _MIN_DIFFERENT * images:
        notes.append(
            f"the {images:,} images to evaluate on form only {plural(different, 'part')}: "
            f"{dataset.units.basis.reason}; intervals count images, so they may be too narrow"
        )
    conflicts = _count_conflicts(dataset.pack)
    if conflicts:
        notes.append(f"{conflicts:,} identical images have different labels")
    return notes


def _count_conflicts(pack: Pack) -> int:
    """Count the images with an identical copy under another label."""
    is_copy = (pack.digests[1:] == pack.digests[:-1]).all(axis=1)
    differs = is_copy & (pack.index.labels[1:] != pack.index.labels[:-1])
    conflicts = np.zeros(len(pack), bool)
    conflicts[1:] |= differs
    conflicts[:-1] |= differs
    return int(conflicts.sum())


def _boxes_hint(paths: Iterable[str]) -> str:
    """Return advice if there are annotation files among the images, or an empty string."""
    annotations = next((path for path in paths if path.lower().endswith((".json", ".xml"))), None)
    if annotations is None:
        return ""
    return f" If {annotations} has boxes: --crop-boxes makes an image of each."


def refuse_one_class(classes: Sequence[str], paths: Iterable[str], source: Source) -> None:
    """Raise DataError if all usable images are of one class.

    Args:
        classes: The classes of the images.
        paths: The files that may not be images.
        source: Where the images are.
    """
    if len(classes) == 1:
        raise DataError(
            f"only one class ('{classes[0]}') has usable images in {source.root}; "
            f"a classifier needs at least two; use one folder per class.{_boxes_hint(paths)}"
        )


def _refuse_unlearnable(dataset: Dataset, source: Source) -> None:
    refuse_one_class(dataset.classes, (problem.path for problem in dataset.problems), source)
    learned = int((dataset.counts(TRAIN) > 0).sum())
    if learned < 2:
        remedy = "lower --validation-fraction and --test-fraction"
        if count_held_out(source):
            remedy = "take some out of the data's own splits for validation and test"
        raise DataError(
            f"{dataset.used:,} images leave only {plural(learned, 'class', 'classes')} to train "
            f"on; add images, or {remedy}"
        )
