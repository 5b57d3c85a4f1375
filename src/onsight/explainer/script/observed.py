"""The facts of a recorded training, as plain values."""

from collections import Counter
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler, default_collate

from onsight.explainer.script.items import examine_items
from onsight.explainer.script.trace import LoaderFacts, OptimizerFacts, Reads, Trace
from onsight.explainer.tracing.recorder import Recorder
from onsight.explainer.tracing.sites import Site
from onsight.explainer.tracing.window import Snapshot
from onsight.hardware.placement.placement import placement

_LEAST_READS = 0.5  # a step, to be worth mentioning


def add_stretch(trace: Trace, first: Snapshot, last: Snapshot, epochs: int) -> None:
    """Fill a trace with what lies between two moments, with so many whole epochs."""
    trace.epochs = epochs
    trace.seconds = last.moment - first.moment
    trace.steps = last.steps - first.steps
    trace.images = last.images - first.images
    trace.evaluated = last.evaluated - first.evaluated
    trace.phases = {name: last.phases[name] - first.phases[name] for name in last.phases}


def complete(trace: Trace, recorder: Recorder, look_at_items: bool) -> None:
    """Fill a trace with everything else that the recorder knows."""
    trace.losses = [float(loss) for loss in recorder.losses]
    trace.reads = _reads(recorder)
    trace.graphs_kept = recorder.graphs_kept.total()
    trace.graphs_site = next((site for site, _ in recorder.graphs_kept.most_common(1)), None)
    trace.forward_site = recorder.forward_site
    trace.pageable_bytes_per_step = recorder.pageable_bytes // recorder.steps
    trace.precision = recorder.precision
    trace.threads = torch.get_num_threads()
    _add_network(trace, recorder)
    if recorder.optimizer is not None:
        trace.optimizer = _optimizer_facts(recorder.optimizer, recorder)
    loader = recorder.training_loader
    if loader is not None:
        trace.loader = _loader_facts(loader, recorder)
        trace.item = examine_items(loader.dataset) if look_at_items else None
    if recorder.evaluation_loader is not None:
        trace.evaluation_loader = _loader_facts(recorder.evaluation_loader, recorder)


def _add_network(trace: Trace, recorder: Recorder) -> None:
    network, batch = recorder.network, recorder.batch
    if network is not None:
        proof = placement(
            model=network, loss=recorder.loss, optimizer=recorder.optimizer, batch=batch
        )
        trace.placement = proof.verdict
        trace.misplaced = [str(one) for one in proof.problems]
        trace.parameters = sum(one.numel() for one in network.parameters())
        trace.device = str(next(network.parameters()).device)
    if batch is not None:
        trace.batch_size, trace.shape = len(batch), list(batch.shape[1:])
        is_last = batch.ndim == 4 and batch.is_contiguous(memory_format=torch.channels_last)
        trace.is_channels_last = is_last and not batch.is_contiguous()


def _reads(recorder: Recorder) -> list[Reads]:
    """The places that read most often first."""
    found: Counter[tuple[Site, ...]] = Counter()
    for caller, count in recorder.reads.items():
        found[recorder.sites.of(caller)] += count
    del found[()]  # not from the user's lines
    steps = max(1, recorder.steps)
    often = ((sites, count / steps) for sites, count in found.most_common())
    return [
        Reads(sites=list(sites), per_step=each) for sites, each in often if each >= _LEAST_READS
    ]


def _optimizer_facts(optimizer: Optimizer, recorder: Recorder) -> OptimizerFacts:
    return OptimizerFacts(
        name=type(optimizer).__name__,
        site=recorder.made_at.get(id(optimizer)),
        is_fused=bool(optimizer.defaults.get("fused")),
    )


def _loader_facts(loader: DataLoader[Any], recorder: Recorder) -> LoaderFacts:
    dataset = loader.dataset
    return LoaderFacts(
        site=recorder.made_at.get(id(loader)),
        batch_size=loader.batch_size,
        workers=loader.num_workers,
        is_pinned=loader.pin_memory,
        is_persistent=loader.persistent_workers,
        is_shuffled=isinstance(loader.sampler, RandomSampler),
        items=len(dataset) if hasattr(dataset, "__len__") else None,
        is_collated=loader.collate_fn is default_collate,
    )
