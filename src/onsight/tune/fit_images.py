"""How many training images a budget has time to decode; the others are left out and listed."""

from dataclasses import replace
from pathlib import Path

from onsight.config import Config
from onsight.data.dataset import MIN_PER_CLASS, choose_packed_size, choose_size, make_format
from onsight.data.pack import is_packed
from onsight.data.packing import PackJob
from onsight.data.sources.source import (
    Source,
    count_held_out,
    draw_rows,
    list_unselected,
    select_rows,
)
from onsight.models.catalog import preferred_size
from onsight.ranks.world import World
from onsight.report.console import Reporter
from onsight.tune.budget import Budget
from onsight.tune.pace import time_decoding

_DECODING_SHARE = 0.3  # of the time left besides, at most: what follows takes longer
MOST_DECODING = 0.45  # of the time left, whatever the samples have shown: a few take very long
_TIMING_SECONDS = 1.0


def fit_images(
    budget: Budget,
    source: Source,
    config: Config,
    threads: int,
    cache: Path | None,
    reporter: Reporter,
    world: World,
) -> Config:
    """The config with as many training images as can be decoded in three tenths of the time left.

    All images of a given test or validation part are kept, and decoded first.
    """
    preferred = preferred_size(config.model, config.weights, config.member)
    size = choose_size(source, config.size, preferred).value
    if config.train_images or _is_packed(source, config, size, cache):
        return config

    def decide() -> str:
        with budget.trying():
            each = time_decoding(source, config, size, _TIMING_SECONDS) / threads
        budget.read_own_clock()
        held_out = count_held_out(source)
        free = len(source.index) - held_out
        fitting = images_in_time(budget, each, held_out, free)
        least = MIN_PER_CLASS * len(source.index.classes)
        return str(fitting if least <= fitting < free else 0)

    drawn = int(world.broadcast("images to decode", decide))
    if drawn:
        reporter.warn(
            f"budget: there is time to decode {drawn:,} training images, drawn at random; "
            "the others are left out and listed in problems.csv. With more time, all are used"
        )
    return config.model_copy(update={"train_images": drawn})


def images_in_time(budget: Budget, each_seconds: float, held_out: int, free: int) -> int:
    """How many of the free images there is time to decode, after those held out."""
    seconds = _DECODING_SHARE * (budget.left_seconds - held_out * each_seconds)
    if free * each_seconds <= seconds:
        return free
    return max(0, int(seconds / each_seconds))


def take_images(source: Source, config: Config) -> Source:
    """The part of a source that the config asks for, all of it by default."""
    if not config.train_images:
        return source
    rows = draw_rows(source, config.train_images, config.seed)
    if len(rows) == len(source.index):
        return source
    reason = f"not among the images drawn (--train-images {config.train_images})"
    problems = [*source.problems, *list_unselected(source, rows, reason)]
    return replace(select_rows(source, rows), problems=problems)


def _is_packed(source: Source, config: Config, size: tuple[int, int], cache: Path | None) -> bool:
    packed = choose_packed_size(source, size, config).value
    return is_packed(PackJob(source, make_format(config, size, packed)), cache)
