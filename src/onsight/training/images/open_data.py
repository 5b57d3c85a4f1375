"""Gets DATA ready for a run: finds it, chooses the size, decodes or reopens it, and reports."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
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
from onsight.data.sources.find import ReadOptions, find_source, name_data
from onsight.data.sources.source import Source, count_held_out
from onsight.models.catalog import preferred_size
from onsight.ranks.world import World
from onsight.report.console import Reporter
from onsight.training.budget import Budget
from onsight.training.images.copies_hint import copies_hint, glance_at, with_alikeness
from onsight.training.images.fit_to_budget import Undecoded, fit_to_budget
from onsight.training.images.most_folds import choose_most_folds
from onsight.training.images.pace import Pace
from onsight.training.images.residency import choose_streaming

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
