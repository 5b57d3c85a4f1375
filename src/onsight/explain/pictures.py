"""The pictures of an explanation: found, decoded, packed and split as in a run."""

from onsight.config import Config
from onsight.data.cache import cache_folder
from onsight.data.dataset import (
    Dataset,
    choose_size,
    open_dataset,
    problem_summary,
    split_sentence,
)
from onsight.data.sources.find import find_source
from onsight.models.catalog import preferred_size
from onsight.report.console import Story
from onsight.training.plan import choose_threads


def open_pictures(data: str, config: Config, story: Story) -> Dataset:
    """The data set that a run with this config would train on. Raises DataError."""
    cache = cache_folder(config.cache_folder, config.cache)
    source = find_source(data, config.layout, cache)
    story.say(f"data: {source.found}")
    size = choose_size(source, config.size, preferred_size(config.model)).value
    threads = choose_threads(config.threads).value
    with story.bar("decode", len(source.index)) as bar:
        dataset = open_dataset(source, config, size, cache, threads, bar.advance)
    story.say(f"pictures: {split_sentence(dataset)}")
    for reason, count in problem_summary(dataset.problems):
        story.warn(f"{count:,} not used: {reason}")
    return dataset
