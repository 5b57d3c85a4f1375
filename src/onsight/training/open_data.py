"""Decodes the images of a run or reopens their pack, splits them, and looks for copies."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import Dataset, count_reasons, open_dataset, summarise_splits
from onsight.data.duplicates.near import connected_groups, sample_near_duplicates
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.packing import NO_TIME
from onsight.data.sources.source import count_held_out, is_memory_name
from onsight.data.split import group_identical
from onsight.report.console import Reporter
from onsight.text import plural
from onsight.training.job import Job
from onsight.training.layout import Layout
from onsight.tune.budget import Budget
from onsight.tune.folds import choose_max_folds
from onsight.tune.training_data import data_key


@dataclass(frozen=True)
class OpenedData:
    """The decoded images with their split.

    Args:
        dataset: The images.
        config: The settings, with all that is decided by now.
        key: A digest of the images, their labels and their split.
        choices: The reasons so far, by config field.
        layout: What was decided before.
    """

    dataset: Dataset
    config: Config
    key: str
    choices: Mapping[str, Choice[Any]]
    layout: Layout


def open_data(layout: Layout, module: nn.Module | None, job: Job) -> OpenedData:
    """Decode the images or reopen their pack, and split them. Raises DataError, ConfigError.

    Args:
        layout: What to decode.
        module: The user's own network, if any.
        job: Where this happens.
    """
    with job.timed("decode"), job.world.local_first("images"):
        dataset = _decode(layout, module, job)
    config = layout.config.model_copy(
        update={
            "folds": str(dataset.folds.value),
            "split_near_duplicates": (
                "together" if dataset.units.includes_near_duplicates else "apart"
            ),
            "train_images": _count_drawn(layout, dataset, job.reporter),
        }
    )
    split = dataset.units.basis
    if not job.budget and job.world.is_main:
        split = _glance(dataset, layout.source.name, split, job.reporter)
    job.reporter.choice("split", split)
    job.reporter.choice("folds", dataset.folds)
    key = data_key(dataset)
    job.world.check_equal("images", key)
    job.world.check_equal("free disk space (set --residency to decide)", config.residency)
    choices = {
        **layout.choices,
        "packed_size": dataset.packed_size,
        "split": split,
        "folds": dataset.folds,
    }
    return OpenedData(dataset, config, key, choices, layout)


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
            lambda pack: choose_max_folds(pack, config, job.device.value, job.budget, module),
            _decoding_deadline(layout, job.budget),
        )
    _report(dataset, job.reporter)
    return dataset


def _decoding_deadline(layout: Layout, budget: Budget | None) -> float:
    """When to stop decoding training images, on the monotonic clock; held-out ones come first."""
    if budget is None or layout.pace is None or layout.decoding_fraction == math.inf:
        return math.inf
    budget.read_own_clock()
    held_out = count_held_out(layout.source) * layout.pace.decode_seconds
    return time.monotonic() + held_out + layout.decoding_fraction * (budget.left_seconds - held_out)


def _count_drawn(layout: Layout, dataset: Dataset, reporter: Reporter) -> int:
    """How many training images to draw when the run is repeated: those there was time for."""
    missed = sum(problem.reason == NO_TIME for problem in dataset.problems)
    if not missed:
        return layout.config.train_images
    count = layout.config.train_images - missed
    reporter.warn(f"budget: decoding took longer than expected: {count:,} training images")
    return count


def _glance(dataset: Dataset, data: str, split: Choice[str], reporter: Reporter) -> Choice[str]:
    """Warn of copies among the images; return how the split is drawn and what they mean for it."""
    seen = glance_at(dataset)
    hint = copies_hint(seen, dataset, data)
    if hint:
        reporter.warn(hint)
    return with_alikeness(split, seen, dataset)


def _report(dataset: Dataset, reporter: Reporter) -> None:
    source = "reopened from the cache" if dataset.pack.was_cached else "decoded"
    kept = dataset.pack.format
    shape = "x".join(str(side) for side in (kept.height, kept.width, kept.channels))
    reporter.say(f"images: {summarise_splits(dataset)} ({source}, {shape})")
    if kept.input_size:
        reporter.choice("packed_size", dataset.packed_size)
    for reason, count in count_reasons(dataset.problems):
        reporter.warn(f"{count:,} not used: {reason}")
    for note in dataset.notes:
        reporter.warn(note)


_MOST = 10_000  # images that are compared, which takes seconds


@dataclass(frozen=True)
class Glance:
    """What a glance found: identical copies, pairs of near-duplicates, the images compared."""

    identical: int
    pairs: list[tuple[int, int]]
    compared: NDArray[np.int64]


def glance_at(dataset: Dataset) -> Glance:
    """Compare the images, or some of very many; near-duplicates that are known are left out."""
    pack = dataset.pack
    _, first = group_identical(pack.digests)
    found = [] if dataset.units.includes_near_duplicates else sample_near_duplicates(pack, _MOST)
    pairs = [(one.first, one.second) for one in found]
    return Glance(len(pack) - len(first), pairs, first[:_MOST])


def copies_hint(seen: Glance, dataset: Dataset, data: str) -> str:
    """What the glance shows and the command that shows more; empty if there is nothing to show."""
    parts = []
    if seen.identical:
        parts.append(plural(seen.identical, "identical copy", "identical copies"))
    if seen.pairs:
        is_part = len(dataset.pack) - seen.identical > _MOST
        among = f" among {_MOST:,} images" if is_part else ""
        parts.append(plural(len(seen.pairs), "near-duplicate") + among)
    if not parts:
        return ""
    command = "onsight.check" if is_memory_name(data) else f"onsight check {data}"
    keeps = ", and the next training keeps near-duplicates on one side of its split"
    return f"{' and '.join(parts)}: `{command}` shows them{keeps if seen.pairs else ''}"


def with_alikeness(how: Choice[str], seen: Glance, dataset: Dataset) -> Choice[str]:
    """How the split is drawn, and how many held-out images are like one to learn from."""
    held_out = np.isin(dataset.splits, (VALIDATION, TEST))
    if dataset.units.includes_near_duplicates or not held_out.any():
        return how
    group = connected_groups(len(dataset.pack), seen.pairs)
    learned = np.isin(group, group[dataset.splits == TRAIN])
    compared = held_out[seen.compared]
    alike = int((compared & learned[seen.compared]).sum())
    sentence = (
        f"of {plural(int(compared.sum()), 'held-out image')}, {alike:,} "
        f"{'is a near-duplicate' if alike == 1 else 'are near-duplicates'} of training images"
    )
    return replace(how, reason=f"{how.reason}; {sentence}")
