"""Gets DATA ready for a run: finds it, chooses the size, decodes or reopens it, and reports."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import (
    USUAL_SIZE,
    Dataset,
    choose_size,
    count_reasons,
    open_dataset,
    summarise_splits,
)
from onsight.data.duplicates.near import connected_groups, sample_near_duplicates
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.sources.find import ReadOptions, find_source, name_data
from onsight.data.sources.source import Source, count_held_out, is_memory_name
from onsight.data.split import group_identical
from onsight.models.catalog import preferred_size
from onsight.ranks.world import World
from onsight.report.console import Reporter
from onsight.text import plural
from onsight.tune.budget import Budget
from onsight.tune.fit_size import Undecoded, fit_to_budget
from onsight.tune.folds import choose_most_folds
from onsight.tune.pace import Pace
from onsight.tune.training_data import choose_streaming

_Size = Choice[tuple[int, int]]


@dataclass(frozen=True)
class OpenedData:
    """The opened dataset, and what was decided about it.

    found: what DATA was recognised as; config: with what was decided; image_size: (height, width)
    of the model's input in pixels; split: how it is drawn; pace: measured before decoding if there
    is a budget.
    """

    found: str
    config: Config
    image_size: _Size
    dataset: Dataset
    split: Choice[str]
    pace: Pace | None = None


def find_data(data: str | Source, config: Config, reporter: Reporter) -> Source:
    """Find out what DATA is, and report it. Raises DataError."""
    cache_folder = find_cache_folder(config.cache_folder)
    source = find_source(data, ReadOptions.from_config(config.model_dump()), cache_folder)
    reporter.say(f"data: {source.description}")
    return source


def open_data(
    source: Source,
    config: Config,
    device: torch.device,
    threads: int,
    reporter: Reporter,
    before_decoding: Callable[[Config], None] = lambda config: None,
    *,
    budget: Budget | None = None,
    world: World | None = None,
    module: nn.Module | None = None,
    decoding_share: float = math.inf,
) -> OpenedData:
    """Choose the image size, and decode or reopen the images.

    before_decoding is called with the config as decided by then; module: the user's own network,
    if any; decoding_share: of the time left in the budget, after which training images that are
    not decoded are left out. Raises DataError, ConfigError; BudgetTooSmall before anything is
    decoded.
    """
    cache = find_cache_folder(config.cache_folder)
    preferred = preferred_size(config.model, config.weights)
    image_size = choose_size(source, config.size, preferred)
    pace = None
    if budget:
        is_open = not (config.size or preferred) and image_size.value == USUAL_SIZE
        is_limited = decoding_share < math.inf
        undecoded = Undecoded(source, config, device, threads, cache, module, is_limited)
        image_size, pace = fit_to_budget(budget, undecoded, image_size, is_open, world or World())
    reporter.choice("image_size", image_size)
    config = _settle_streaming(source, config, image_size.value, cache, reporter)
    before_decoding(config)
    with reporter.bar("decode", len(source.index)) as bar:
        dataset = open_dataset(
            source,
            config,
            image_size.value,
            cache,
            threads,
            bar.advance,
            lambda pack: choose_most_folds(pack, config, device, budget, module),
            _deadline(budget, source, pace, decoding_share),
        )
    near = "together" if dataset.units.includes_near_duplicates else "apart"
    config = config.model_copy(
        update={"folds": str(dataset.folds.value), "split_near_duplicates": near}
    )
    _report(dataset, reporter)
    split = dataset.units.how
    if not budget and (world is None or world.rank == 0):
        seen = glance_at(dataset)
        split = with_alikeness(split, seen, dataset)
        hint = copies_hint(seen, dataset, name_data(source))
        if hint:
            reporter.warn(hint)
    return OpenedData(source.description, config, image_size, dataset, split, pace)


def _deadline(budget: Budget | None, source: Source, pace: Pace | None, share: float) -> float:
    """When to stop decoding training images, on the monotonic clock; held-out ones come first."""
    if budget is None or pace is None or share == math.inf:
        return math.inf
    budget.peek()
    held_out = count_held_out(source) * pace.decode_seconds
    return time.monotonic() + held_out + share * (budget.left_seconds - held_out)


def _settle_streaming(
    source: Source, config: Config, size: tuple[int, int], cache: Path | None, reporter: Reporter
) -> Config:
    """The config, with its residency set to stream if the images are streamed."""
    streaming = choose_streaming(config, source, size, cache)
    if streaming.value and config.residency == "auto":
        reporter.say(f"images are streamed: {streaming.reason}")
        return config.model_copy(update={"residency": "stream"})
    return config


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
