"""Decodes the images of a run or reopens their pack, splits them, and searches for copies."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import Dataset, describe_problems, open_dataset, summarise_splits
from onsight.data.pack import open_pack
from onsight.data.packing import NO_TIME, PackJob
from onsight.data.sources.source import Source, count_held_out, is_memory_name, select_rows
from onsight.data.split import group_identical
from onsight.hardware.devices import package_versions
from onsight.models.file import BlendFile, ModelFile, find_model_file, image_keys
from onsight.report.console import Reporter
from onsight.text import plural
from onsight.training.job import Job
from onsight.training.layout import Layout, explain_candidate_size, settle_network
from onsight.tune.candidates import Candidate
from onsight.tune.folds import choose_max_folds
from onsight.tune.training_data import data_key

_MAX_DECODING_FRACTION = 0.35  # of the time left


@dataclass(frozen=True)
class OpenedData:
    """The decoded images with their split.

    Args:
        dataset: The images.
        config: The settings, with every choice made so far.
        key: A digest of the images, their labels and their split.
        choices: The choices made so far, by config field.
        layout: The choices made before decoding.
    """

    dataset: Dataset
    config: Config
    key: str
    choices: Mapping[str, Choice[Any]]
    layout: Layout

    @property
    def provenance(self) -> dict[str, Any]:
        """What model files contain about their origin."""
        source = self.layout.source
        return {
            "data": source.name,
            "found": source.description,
            "data_key": self.key,
            "config": self.config.model_dump(),
            "versions": package_versions(),
        }


def open_data(layout: Layout, module: nn.Module | None, job: Job) -> OpenedData:
    """Decode the images or reopen their pack, and split them.

    Args:
        layout: The images, and the size to decode them to.
        module: The user's own network, if any.
        job: The job that trains on the images.

    Raises:
        DataError: The images cannot be trained on.
        ConfigError: The settings do not fit the images.
    """
    with job.timed("decode"), job.world.local_first("images"):
        dataset = _decode(layout, module, job)
    config = layout.config.model_copy(
        update={
            "folds": str(dataset.folds.value),
            "split_near_duplicates": (
                "apart" if dataset.units.near_duplicates is None else "together"
            ),
            "train_images": _count_train_images(layout, dataset, job.reporter),
        }
    )
    if hint := describe_copies(dataset, layout.source.name):
        job.reporter.warn(hint)
    is_apart = (
        layout.config.split_near_duplicates == "auto" and config.split_near_duplicates == "apart"
    )
    job.reporter.choice("split", dataset.units.basis, is_detail=not is_apart)
    job.reporter.choice("folds", dataset.folds, is_detail=dataset.folds.value == 1)
    key = data_key(dataset)
    job.world.check_equal("images", key)
    job.world.check_equal("free disk space (set --residency to decide)", config.residency)
    choices = {
        **layout.choices,
        "packed_size": dataset.packed_size,
        "split": dataset.units.basis,
        "folds": dataset.folds,
    }
    return OpenedData(dataset, config, key, choices, layout)


def select_candidate(
    opened: OpenedData, candidate: Candidate, config: Config, job: Job
) -> OpenedData:
    """Return the images for one of several networks, with its input size and settings."""
    height, width = candidate.image_size
    config = config.model_copy(update={"image_size": f"{height}x{width}"})
    config, rate, fine_tuning = settle_network(config, job)
    choices = {
        **opened.choices,
        "model": Choice(config.model, f"one of {opened.choices['model'].value}"),
        "learning_rate": rate,
        "image_size": Choice(candidate.image_size, explain_candidate_size(config)),
    }
    return replace(
        opened,
        dataset=opened.dataset.at_size(candidate.image_size),
        config=config,
        choices=choices,
        layout=replace(opened.layout, fine_tuning=fine_tuning, candidates=(candidate,)),
    )


def _decode(layout: Layout, module: nn.Module | None, job: Job) -> Dataset:
    config = layout.config
    with job.reporter.bar("decode", len(layout.source.index)) as bar:
        dataset = open_dataset(
            layout.source,
            config,
            layout.image_size,
            find_cache_folder(config.cache_folder),
            job.threads.value,
            bar.advance,
            lambda pack: choose_max_folds(
                pack, config, layout.candidates, job.device.value, module
            ),
            _choose_decoding_deadline(job),
        )
    if config.weights and (file := find_model_file(config.weights)):
        dataset = replace(dataset, seen_before=_find_seen(file, layout.source, dataset, job))
        dataset.notes.extend(_describe_seen(config.weights, dataset))
    _report_images(dataset, job.reporter)
    return dataset


def _find_seen(
    file: ModelFile | BlendFile, source: Source, dataset: Dataset, job: Job
) -> NDArray[np.int64]:
    """Return the keys of the images that the weights of a run have learned from.

    If the run decoded images for another size or other channels, JPEGs had other keys. Then those
    to evaluate on are decoded in that way once more, to find them among the others.
    """
    before, now, evaluated = file.format, dataset.pack.format, dataset.evaluated
    decoding = ("decoded_size", "channels", "background")
    is_same = all(getattr(before, name) == getattr(now, name) for name in decoding)
    if is_same or not len(evaluated):
        return file.seen
    source = select_rows(source, dataset.pack.sources[evaluated])
    target = replace(before, pixel_limit=now.pixel_limit)
    pack = open_pack(PackJob(source, target, threads=job.threads.value), None)
    seen = evaluated[pack.sources[np.isin(image_keys(pack.digests), file.seen)]]
    return np.union1d(file.seen, image_keys(dataset.pack.digests[seen]))


def _describe_seen(weights: str, dataset: Dataset) -> Iterator[str]:
    """Yield a note if the weights have learned from images to evaluate on."""
    keys = image_keys(dataset.pack.digests[dataset.evaluated])
    count = int(np.isin(keys, dataset.seen_before).sum())
    if count:
        yield (
            f"{count:,} of {len(keys):,} images to evaluate on have trained or selected the "
            f"weights of {weights}, which this run starts from: its accuracy is too high for new "
            "images"
        )


def _choose_decoding_deadline(job: Job) -> float:
    """Return when to stop decoding training images, on the monotonic clock.

    Several ranks decode all images, because each would stop at another one.
    """
    if not job.deadline.is_set or job.is_planned or job.world.size > 1:
        return math.inf
    return time.monotonic() + _MAX_DECODING_FRACTION * job.deadline.remaining()


def _count_train_images(layout: Layout, dataset: Dataset, reporter: Reporter) -> int:
    """Return the config's number of training images, less those there was no time to decode."""
    skipped = sum(problem.reason == NO_TIME for problem in dataset.problems)
    if not skipped:
        return layout.config.train_images
    held_out = count_held_out(layout.source)
    count = len(layout.source.index) - held_out - skipped
    kind = "training images" if held_out else "images"  # that will be split
    reporter.warn(
        f"budget: there was time to decode {count:,} {kind}, drawn at random; the other "
        f"{skipped:,} are left out and listed in problems.csv. With more time, all are used"
    )
    return count


def _report_images(dataset: Dataset, reporter: Reporter) -> None:
    source = "reopened from the cache" if dataset.pack.was_cached else "decoded"
    image_format = dataset.pack.format
    sides = (image_format.height, image_format.width, image_format.channels)
    shape = "x".join(map(str, sides))
    reporter.say(f"images: {summarise_splits(dataset)}")
    reporter.detail(f"images are {source}: {shape}")
    if image_format.input_size:
        reporter.choice("packed_size", dataset.packed_size)
    # Those there was no time for have a line of their own.
    unusable = [problem for problem in dataset.problems if problem.reason != NO_TIME]
    for line in describe_problems(unusable):
        reporter.warn(line)
    for note in dataset.notes:
        reporter.warn(note)


def describe_copies(dataset: Dataset, data: str) -> str:
    """Describe the copies and name the command that shows them; empty if there are none."""
    parts = []
    if identical := len(dataset.pack) - len(group_identical(dataset.pack.digests)[1]):
        parts.append(plural(identical, "identical copy", "identical copies"))
    if dataset.units.near_duplicates:
        parts.append(plural(dataset.units.near_duplicates, "near-duplicate pair"))
    if not parts:
        return ""
    command = "onsight.check" if is_memory_name(data) else f"onsight check {data}"
    return f"{' and '.join(parts)}, kept on one side of the split: `{command}` shows them"
