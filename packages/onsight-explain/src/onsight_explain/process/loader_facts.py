"""The training loader as a script made it: torch's, or one of another library."""

from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset, RandomSampler, default_collate

from onsight_explain.process.items import examine_items
from onsight_explain.process.streams import count_shards, describe_stream
from onsight_explain.script.trace import ItemFacts, LoaderFacts
from onsight_explain.tracing.sites import Made


def examine_loader(
    loader: Any, made: Made, look_at_items: bool
) -> tuple[LoaderFacts, ItemFacts | None, list[str]]:
    """Its facts, what an item costs if that is asked for, and what cannot be tried with it."""
    if made.maker == "fastai":
        items = FastaiItems(loader)
        return _of_fastai(loader, made), examine_items(items) if look_at_items else None, []
    dataset = loader.dataset
    facts = LoaderFacts(
        site=made.site,
        maker=made.maker,
        batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        workers=loader.num_workers,
        is_pinned=bool(loader.pin_memory),
        is_persistent=bool(loader.persistent_workers),
        is_shuffled=isinstance(_sampler(loader), RandomSampler),
        items=_length(dataset),
        is_collated=loader.collate_fn is default_collate,
    )
    if not isinstance(dataset, IterableDataset):
        return facts, examine_items(dataset) if look_at_items else None, []
    if not look_at_items:
        most_workers = count_shards(dataset) or max(1, facts.workers)
        return replace(facts, has_items=False, most_workers=most_workers), None, []
    stream = describe_stream(dataset)
    facts = replace(facts, has_items=False, most_workers=stream.most_workers)
    return facts, stream.item, stream.sentences(facts.batch_size, facts.workers)


class FastaiItems:
    """The items of a fastai loader, with the transforms that it applies to each."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.loader.do_item(index)


def _of_fastai(loader: Any, made: Made) -> LoaderFacts:
    stand_in = loader.fake_l
    return LoaderFacts(
        site=made.site,
        maker=made.maker,
        batch_size=loader.bs,
        workers=stand_in.num_workers,
        is_pinned=bool(loader.pin_memory),
        is_persistent=bool(stand_in.persistent_workers),
        is_shuffled=bool(loader.shuffle),
        items=loader.n,
        has_items=False,  # its transforms are the loader's, not the data set's
    )


def _sampler(loader: Any) -> Any:
    """What draws the items; a loader that was given batches of numbers keeps it inside them."""
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
