"""DATA made ready for a run: found, sized, decoded or reopened, and told."""

from collections.abc import Callable
from pathlib import Path

from onsight.config import Config
from onsight.data.cache import find_cache_folder
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
from onsight.report.console import Reporter
from onsight.training.budget.budget import Budget
from onsight.training.budget.fit_budget import fit_image_size
from onsight.training.plan import Plan, choose_streaming


def open_data(
    data: str,
    config: Config,
    plan: Plan,
    reporter: Reporter,
    budget: Budget | None = None,
    before_decoding: Callable[[Config], None] = lambda config: None,
) -> tuple[str, Config, Dataset]:
    """What DATA was found to be, the config with what was settled about it, and its pictures.

    plan: has device and threads, gets image_size and packed_size. Raises DataError.
    """
    cache = find_cache_folder(config.cache_folder)
    source = find_source(data, config.data_format, cache)
    reporter.say(f"data: {source.found}")
    config = _settle_sizes(source, config, plan, cache, reporter, budget)
    before_decoding(config)
    size, threads = plan["image_size"].value, plan["threads"].value
    with reporter.bar("decode", len(source.index)) as bar:
        dataset = open_dataset(source, config, size, cache, threads, bar.advance)
    plan["packed_size"] = dataset.packed_size
    _tell(dataset, reporter)
    return source.found, config, dataset


def _settle_sizes(
    source: Source,
    config: Config,
    plan: Plan,
    cache: Path | None,
    reporter: Reporter,
    budget: Budget | None,
) -> Config:
    """Choose the input's size and whether pictures are streamed, which the config then keeps."""
    preferred = preferred_size(config.model)
    plan["image_size"] = choose_size(source, config.size, preferred)
    if budget and not (config.size or preferred) and plan["image_size"].value == USUAL_SIZE:
        device, threads = plan["device"].value, plan["threads"].value
        plan["image_size"] = fit_image_size(budget, source, config, device, threads)
    reporter.choice("image_size", plan["image_size"])
    streaming = choose_streaming(config, source, plan["image_size"].value, cache)
    if streaming.value and config.residency == "auto":
        reporter.say(f"pictures are streamed: {streaming.reason}")
        return config.model_copy(update={"residency": "stream"})
    return config


def _tell(dataset: Dataset, reporter: Reporter) -> None:
    source = "reopened from the cache" if dataset.pack.was_cached else "decoded"
    kept = dataset.pack.format
    shape = "x".join(str(side) for side in (kept.height, kept.width, kept.channels))
    reporter.say(f"pictures: {split_sentence(dataset)} ({source}, {shape})")
    if kept.input_size:
        reporter.choice("packed_size", dataset.packed_size)
    for reason, count in problem_summary(dataset.problems):
        reporter.warn(f"{count:,} not used: {reason}")
    for note in dataset.notes:
        reporter.warn(note)
