"""Converts a recorder's observations of a training run into the plain data stored in a Trace."""

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import IterableDataset, RandomSampler, default_collate

from onsight_explain.placement.placement import placement
from onsight_explain.process.items import count_shards, examine_items, examine_stream
from onsight_explain.script.trace import ItemFacts, LoaderFacts, OptimizerFacts, Reads, Trace
from onsight_explain.tracing.recorder import Recorder
from onsight_explain.tracing.sites import ObjectOrigin, Site
from onsight_explain.tracing.window import WindowProgress

_MIN_READS = 0.5  # reads per step; rarer reads are not reported


def add_interval(trace: Trace, first: WindowProgress, last: WindowProgress, epochs: int) -> None:
    """Add the progress between two snapshots, which contain this many whole epochs."""
    trace.epochs = epochs
    trace.seconds = last.time - first.time
    trace.steps = last.steps - first.steps
    trace.images = last.images - first.images
    trace.evaluated = last.evaluated - first.evaluated
    trace.phases = {name: last.phases[name] - first.phases[name] for name in last.phases}


def describe_training(trace: Trace, recorder: Recorder, with_items: bool) -> None:
    """Add the remaining observations; with `with_items`, also measure the cost of an item."""
    forwards, updates = recorder.forwards, recorder.updates
    trace.losses = [float(loss) for loss in updates.losses]
    trace.reads = _reads(recorder)
    trace.graphs_kept = forwards.graphs_kept.total()
    trace.graphs_site = next((site for site, _ in forwards.graphs_kept.most_common(1)), None)
    trace.forward_site = forwards.site
    trace.trainer, trace.trainer_site = updates.trainer.maker, updates.trainer.site
    trace.pageable_bytes_per_step = recorder.transfers.pageable_bytes // recorder.steps
    trace.precision = forwards.precision
    trace.threads = torch.get_num_threads()
    _add_network(trace, recorder)
    if updates.optimizer is not None:
        trace.optimizer = OptimizerFacts(
            name=type(updates.optimizer).__name__,
            site=updates.origin(updates.optimizer).site,
            is_fused=bool(updates.optimizer.defaults.get("fused")),
        )
    loader = recorder.loaders.training
    if loader is not None:
        origin = recorder.loaders.origin(loader)
        trace.loader, trace.item, trace.remarks = examine_loader(loader, origin, with_items)
    evaluation_loader = recorder.loaders.evaluation
    if evaluation_loader is not None:
        origin = recorder.loaders.origin(evaluation_loader)
        trace.evaluation_loader = examine_loader(evaluation_loader, origin, with_items=False).facts
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if ranks > 1:
        trace.remarks.append(f"{ranks} processes train together; figures are for one of them")


class LoaderExamination(NamedTuple):
    """The facts about a loader and, if requested, about its items."""

    facts: LoaderFacts
    item: ItemFacts | None  # None if not requested or not measurable
    remarks: list[str]  # changes that cannot be tried, and why


def examine_loader(loader: Any, origin: ObjectOrigin, with_items: bool) -> LoaderExamination:
    """Return a loader's facts; if `with_items`, also measure the cost of an item."""
    if origin.maker == "fastai":
        item = examine_items(FastaiItems(loader)) if with_items else None
        return LoaderExamination(_fastai_facts(loader, origin), item, [])
    dataset = loader.dataset
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    facts = LoaderFacts(
        site=origin.site,
        maker=origin.maker,
        batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        workers=loader.num_workers,
        is_pinned=bool(loader.pin_memory),
        is_persistent=bool(loader.persistent_workers),
        is_shuffled=isinstance(sampler, RandomSampler),
        items=_length(dataset),
        is_collated=loader.collate_fn is default_collate,
    )
    if not isinstance(dataset, IterableDataset):
        return LoaderExamination(facts, examine_items(dataset) if with_items else None, [])
    if not with_items:
        most_workers = count_shards(dataset) or max(1, facts.workers)
        facts = replace(facts, has_items=False, most_workers=most_workers)
        return LoaderExamination(facts, None, [])
    stream = examine_stream(dataset)
    facts = replace(facts, has_items=False, most_workers=stream.most_workers)
    remarks = stream.remarks(facts.batch_size, facts.workers)
    return LoaderExamination(facts, stream.item, remarks)


class FastaiItems:
    """The items of a fastai loader, with the transforms that it applies to each."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.loader.do_item(index)


def _fastai_facts(loader: Any, origin: ObjectOrigin) -> LoaderFacts:
    torch_loader = loader.fake_l
    return LoaderFacts(
        site=origin.site,
        maker=origin.maker,
        batch_size=loader.bs,
        workers=torch_loader.num_workers,
        is_pinned=bool(loader.pin_memory),
        is_persistent=bool(torch_loader.persistent_workers),
        is_shuffled=bool(loader.shuffle),
        items=loader.n,
        has_items=False,  # its transforms belong to the loader, not to the dataset
    )


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _add_network(trace: Trace, recorder: Recorder) -> None:
    network, batch = recorder.forwards.network, recorder.forwards.batch
    if network is not None:
        table = placement(
            model=network,
            loss=recorder.forwards.loss,
            optimizer=recorder.updates.optimizer,
            batch=batch,
        )
        trace.placement = table.verdict
        trace.misplaced = [str(problem) for problem in table.problems]
        trace.parameters = sum(parameter.numel() for parameter in network.parameters())
        trace.device = str(next(network.parameters()).device)
        trace.has_channels_last_weights = any(map(_is_channels_last, network.parameters()))
    if batch is not None:
        trace.batch_size, trace.shape = len(batch), list(batch.shape[1:])
        trace.is_channels_last = _is_channels_last(batch)


def _is_channels_last(tensor: Tensor) -> bool:
    """Compare strides too: `is_contiguous` is ambiguous for 1 channel or 1x1 images."""
    is_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return is_last and tensor.stride() != torch.empty(tensor.shape, device="meta").stride()


def _reads(recorder: Recorder) -> list[Reads]:
    """Return the call stacks at which values are read, the most frequent first."""
    counts: Counter[tuple[Site, ...]] = Counter()
    for caller, count in recorder.transfers.reads.items():
        counts[recorder.sites.of(caller)] += count
    del counts[()]  # reads with no frame in user code
    steps = max(1, recorder.steps)
    per_step = ((sites, count / steps) for sites, count in counts.most_common())
    return [
        Reads(sites=list(sites), per_step=rate) for sites, rate in per_step if rate >= _MIN_READS
    ]
