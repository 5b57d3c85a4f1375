"""The facts of a recorded training, as plain values."""

from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from onsight_explain.placement.placement import placement
from onsight_explain.process.loader_facts import examine_loader
from onsight_explain.script.trace import OptimizerFacts, Reads, Trace
from onsight_explain.tracing.recorder import Recorder
from onsight_explain.tracing.sites import Site
from onsight_explain.tracing.window import Snapshot

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
    trace.losses = [float(loss) for loss in recorder.updates.losses]
    trace.reads = _reads(recorder)
    trace.graphs_kept = recorder.forwards.graphs_kept.total()
    trace.graphs_site = next(
        (site for site, _ in recorder.forwards.graphs_kept.most_common(1)), None
    )
    trace.forward_site = recorder.forwards.site
    trace.trainer, trace.trainer_site = (
        recorder.updates.trainer.maker,
        recorder.updates.trainer.site,
    )
    trace.pageable_bytes_per_step = recorder.transfers.pageable_bytes // recorder.steps
    trace.precision = recorder.forwards.precision
    trace.threads = torch.get_num_threads()
    _add_network(trace, recorder)
    if recorder.updates.optimizer is not None:
        trace.optimizer = _optimizer_facts(recorder.updates.optimizer, recorder)
    loader = recorder.loaders.training
    if loader is not None:
        made = recorder.loaders.made(loader)
        trace.loader, trace.item, trace.remarks = examine_loader(loader, made, look_at_items)
    judging = recorder.loaders.evaluation
    if judging is not None:
        made = recorder.loaders.made(judging)
        trace.evaluation_loader, _, _ = examine_loader(judging, made, look_at_items=False)
    if (count := _processes()) > 1:
        trace.remarks.append(f"{count} processes train together; the figures are those of one")


def _processes() -> int:
    """How many train together."""
    is_joined = dist.is_available() and dist.is_initialized()
    return dist.get_world_size() if is_joined else 1


def _add_network(trace: Trace, recorder: Recorder) -> None:
    network, batch = recorder.forwards.network, recorder.forwards.batch
    if network is not None:
        proof = placement(
            model=network,
            loss=recorder.forwards.loss,
            optimizer=recorder.updates.optimizer,
            batch=batch,
        )
        trace.placement = proof.verdict
        trace.misplaced = [str(one) for one in proof.problems]
        trace.parameters = sum(one.numel() for one in network.parameters())
        trace.device = str(next(network.parameters()).device)
        trace.has_channels_last_weights = any(map(_is_channels_last, network.parameters()))
    if batch is not None:
        trace.batch_size, trace.shape = len(batch), list(batch.shape[1:])
        trace.is_channels_last = _is_channels_last(batch)


def _is_channels_last(tensor: Tensor) -> bool:
    """Told by the strides: with one channel, or one pixel, both formats are contiguous."""
    is_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return is_last and tensor.stride() != torch.empty(tensor.shape, device="meta").stride()


def _reads(recorder: Recorder) -> list[Reads]:
    """The places that read most often first."""
    found: Counter[tuple[Site, ...]] = Counter()
    for caller, count in recorder.transfers.reads.items():
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
        site=recorder.updates.made(optimizer).site,
        is_fused=bool(optimizer.defaults.get("fused")),
    )
