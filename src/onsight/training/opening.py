"""DATA made ready for a run: found, sized, decoded or reopened, and told."""

from collections.abc import Callable
from pathlib import Path

from onsight.config import Config
from onsight.data.cache import cache_folder
from onsight.data.dataset import (
    USUAL_SIZE,
    Dataset,
    choose_size,
    open_dataset,
    problem_summary,
    split_sentence,
)
from onsight.data.sources.find import find_source
from onsight.data.sources.source import Source
from onsight.models.catalog import preferred_size
from onsight.report.console import Story
from onsight.training.allot import allot_size
from onsight.training.budget import Budget
from onsight.training.plan import Plan, choose_streaming


def open_data(
    data: str,
    config: Config,
    plan: Plan,
    story: Story,
    budget: Budget | None = None,
    before_decoding: Callable[[Config], None] = lambda config: None,
) -> tuple[str, Config, Dataset]:
    """What DATA was found to be, the config with what was settled about it, and its pictures.

    plan: has device and threads, gets image_size and packed_size. Raises DataError.
    """
    cache = cache_folder(config.cache_folder, config.cache)
    source = find_source(data, config.layout, cache)
    story.say(f"data: {source.found}")
    config = _settle_sizes(source, config, plan, cache, story, budget)
    before_decoding(config)
    size, threads = plan["image_size"].value, plan["threads"].value
    with story.bar("decode", len(source.index)) as bar:
        dataset = open_dataset(source, config, size, cache, threads, bar.advance)
    plan["packed_size"] = dataset.packed_size
    _tell(dataset, story)
    return source.found, config, dataset


def _settle_sizes(
    source: Source,
    config: Config,
    plan: Plan,
    cache: Path | None,
    story: Story,
    budget: Budget | None,
) -> Config:
    """Choose the input's size and whether pictures are streamed, which the config then keeps."""
    preferred = preferred_size(config.model)
    plan["image_size"] = choose_size(source, config.size, preferred)
    if budget and not (config.size or preferred) and plan["image_size"].value == USUAL_SIZE:
        device, threads = plan["device"].value, plan["threads"].value
        plan["image_size"] = allot_size(budget, source, config, device, threads)
    story.choice("image_size", plan["image_size"])
    streaming = choose_streaming(config, source, plan["image_size"].value, cache)
    if streaming.value and config.residency == "auto":
        story.say(f"pictures are streamed: {streaming.reason}")
        return config.model_copy(update={"residency": "stream"})
    return config


def _tell(dataset: Dataset, story: Story) -> None:
    source = "reopened from the cache" if dataset.pack.was_cached else "decoded"
    kept = dataset.pack.format
    shape = "x".join(str(side) for side in (kept.height, kept.width, kept.channels))
    story.say(f"pictures: {split_sentence(dataset)} ({source}, {shape})")
    if kept.input_size:
        story.choice("packed_size", dataset.packed_size)
    for reason, count in problem_summary(dataset.problems):
        story.warn(f"{count:,} not used: {reason}")
    for note in dataset.notes:
        story.warn(note)
