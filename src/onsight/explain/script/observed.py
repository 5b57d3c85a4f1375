"""The facts of a recorded training, as plain values."""

from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler

from onsight.explain.script.items import examine_items
from onsight.explain.script.trace import LoaderFacts, OptimizerFacts, Reads, Trace
from onsight.explain.tracing.recorder import Recorder
from onsight.hardware.placement.placement import placement

_LEAST_READS = 0.5  # a step, to be worth a word


def facts_of(recorder: Recorder, trace: Trace, look_at_items: bool) -> Trace:
    """The trace with everything that the recorder knows."""
    stretch = recorder.window.stretch()
    assert stretch
    first, last, epochs = stretch
    network, batch, loader = recorder.network, recorder.batch, recorder.training_loader
    facts: dict[str, Any] = {
        "seconds": last.moment - first.moment,
        "steps": last.steps - first.steps,
        "images": last.images - first.images,
        "evaluated": last.evaluated - first.evaluated,
        "epochs": epochs,
        "phases": {name: last.phases[name] - first.phases[name] for name in last.phases},
        "losses": [float(loss) for loss in recorder.losses],
        "reads": _reads(recorder),
        "graphs_kept": recorder.graphs_kept.total(),
        "graphs_site": next((site for site, _ in recorder.graphs_kept.most_common(1)), None),
        "forward_site": recorder.forward_site,
        "pageable_bytes_per_step": recorder.pageable_bytes // recorder.steps,
        "precision": recorder.precision,
        "threads": torch.get_num_threads(),
    }
    if network is not None:
        proof = placement(
            model=network, loss=recorder.loss, optimizer=recorder.optimizer, batch=batch
        )
        facts |= {"placement": proof.verdict, "misplaced": [str(one) for one in proof.problems]}
        facts["parameters"] = sum(one.numel() for one in network.parameters())
        facts["device"] = str(next(network.parameters()).device)
    if batch is not None:
        facts |= {"batch_size": len(batch), "shape": list(batch.shape[1:])}
        is_last = batch.ndim == 4 and batch.is_contiguous(memory_format=torch.channels_last)
        facts["is_channels_last"] = is_last and not batch.is_contiguous()
    if recorder.optimizer is not None:
        facts["optimizer"] = _optimizer_facts(recorder.optimizer, recorder)
    if loader is not None:
        facts["loader"] = _loader_facts(loader, recorder)
        facts["item"] = examine_items(loader.dataset) if look_at_items else None
    return trace.model_copy(update=facts)


def _reads(recorder: Recorder) -> list[Reads]:
    found: dict[tuple[Any, ...], int] = {}
    for caller, count in recorder.reads.items():
        sites = recorder.sites.of(caller)
        if sites:
            found[sites] = found.get(sites, 0) + count
    steps = max(1, recorder.steps)
    often = [Reads(sites=list(sites), per_step=count / steps) for sites, count in found.items()]
    return sorted(
        (one for one in often if one.per_step >= _LEAST_READS), key=lambda one: -one.per_step
    )


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
    )
