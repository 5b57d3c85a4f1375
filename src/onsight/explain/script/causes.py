"""What holds a script back: the cause whose removal gained most, with what was seen of it."""

from dataclasses import dataclass

from onsight.explain.gain import GAIN
from onsight.explain.script.trace import Trace
from onsight.explain.script.trials import Tried
from onsight.words import percent, plural, ratio_words, step_times

_HALF, _MOST = 0.5, 2 / 3  # of an item's time: what it is then named after


@dataclass(frozen=True)
class Cause:
    """A cause by its short name, and a sentence with its evidence."""

    name: str
    sentence: str


def find_cause(trace: Trace, tried: list[Tried], cores: int) -> Cause:
    """The cause of the what-if that gained most; without any, of the largest phase."""
    faster = [one for one in tried if one.ratio >= GAIN]
    if not faster:
        return _by_phases(trace)
    best = max(faster, key=lambda one: one.ratio)
    (kind,) = best.what_if.kinds
    if kind in ("loader", "augmentation"):
        return _of_loading(trace, faster, cores)
    return _BY_KIND[kind](trace)


def _of_loading(trace: Trace, faster: list[Tried], cores: int) -> Cause:
    loader, item = trace.loader, trace.item
    assert loader
    if loader.workers + trace.threads > cores and loader.workers > 1:
        fewer = [one for one in faster if _is_fewer(one, loader.workers)]
        if fewer:
            return Cause(
                "oversubscribed",
                f"{loader.workers} loader workers and {trace.threads} compute threads share "
                f"{plural(cores, 'core')} and get in each other's way",
            )
    best = max(faster, key=lambda one: one.ratio).what_if.changes
    is_repeated = best.cache in ("items", "fixed")  # the same work every epoch was what cost
    return _of_items(trace, is_repeated) if item else Cause("loader", _waiting(trace))


def _is_fewer(tried: Tried, workers: int) -> bool:
    asked = tried.what_if.changes.workers
    return asked is not None and asked < workers


def _of_items(trace: Trace, is_repeated: bool) -> Cause:
    item, loader = trace.item, trace.loader
    assert item
    assert loader
    (each,) = step_times(item.seconds)
    if item.waiting_share > _HALF:
        return Cause(
            "disk",
            f"{_waiting(trace)}: an item takes {each}, {percent(item.waiting_share)} of it "
            "waiting for the disk or the network, not computing",
        )
    if item.transform_share > _MOST and item.is_random and not is_repeated:
        return Cause(
            "augmentation",
            f"{_waiting(trace)}: an item takes {each}, {percent(item.transform_share)} of it in "
            "random transforms, one picture after the other",
        )
    if item.transform_share > _MOST:
        return Cause(
            "slow-transform",
            f"{_waiting(trace)}: an item takes {each}, {percent(item.transform_share)} of it in "
            "transforms that give the same result every epoch",
        )
    where = "in the training process itself" if not loader.workers else "in the workers"
    return Cause("loader", f"{_waiting(trace)}: reading and decoding an item takes {each}, {where}")


def _waiting(trace: Trace) -> str:
    return f"{percent(trace.share('data'))} of the time it waits for the loader"


def _small_batch(trace: Trace) -> Cause:
    (step,) = step_times(trace.seconds / trace.steps)
    return Cause(
        "small-batch",
        f"a step of {trace.batch_size} pictures takes {step}, and most of that is the fixed cost "
        f"of Python and of starting operations: a larger batch costs little more",
    )


def _sync(trace: Trace) -> Cause:
    reads = max(trace.reads, key=lambda one: one.per_step)
    return Cause(
        "sync",
        f"{reads.per_step:,.0f} times a step a value is read into Python, at {reads.sites[0]}",
    )


def _precision(trace: Trace) -> Cause:
    share = trace.share("forward", "backward")
    return Cause(
        "precision",
        f"{percent(share)} of the time is arithmetic of forward and backward in {trace.precision}",
    )


def _no_grad(trace: Trace) -> Cause:
    return Cause(
        "no-grad",
        f"{percent(trace.share('evaluation'))} of the time is evaluation, which builds graphs "
        f"for gradients that nobody asks for, at {trace.graphs_site}",
    )


def _threads(trace: Trace) -> Cause:
    (step,) = step_times(trace.seconds / trace.steps)
    return Cause(
        "threads",
        f"in steps of {step}, {trace.threads} compute threads wait for each other more than "
        "they help",
    )


def _memory_format(trace: Trace) -> Cause:
    share = trace.share("forward", "backward")
    return Cause(
        "memory_format", f"{percent(share)} of the time is forward and backward, channels first"
    )


def _optimizer(trace: Trace) -> Cause:
    return Cause(
        "optimizer",
        f"{percent(trace.share('optimizer'))} of the time is the optimizer, which updates "
        "tensor by tensor",
    )


def _copies(trace: Trace) -> Cause:
    each = trace.pageable_bytes_per_step / 1e6
    return Cause(
        "pageable-copy",
        f"{percent(trace.share('copy'))} of the time is copying to the device, about {each:,.1f} "
        "MB a step from pageable memory, which the device must wait for",
    )


_BY_KIND = {
    "batch": _small_batch,
    "reads": _sync,
    "precision": _precision,
    "evaluation": _no_grad,
    "threads": _threads,
    "memory_format": _memory_format,
    "optimizer": _optimizer,
    "pinning": _copies,
}


def _by_phases(trace: Trace) -> Cause:
    """Where the time goes, when nothing that was tried helps, or nothing was."""
    share = {name: seconds / trace.seconds for name, seconds in trace.phases.items()}
    waiting = share["data"]
    compute = sum(share[name] for name in ("forward", "backward", "optimizer", "evaluation"))
    if waiting > max(compute, share["other"]):
        return _of_items(trace, False) if trace.item else Cause("loader", _waiting(trace))
    if trace.pageable_bytes_per_step and share["copy"] > compute:
        return _copies(trace)
    if compute >= share["other"]:
        return Cause("compute", f"{percent(compute)} of the time the network computes")
    return Cause(
        "other",
        f"{percent(share['other'])} of the time is Python between torch's calls: metrics, "
        "logging, the loop itself",
    )


def verdict(trace: Trace, cause: Cause, best: Tried | None, rate: float, tried: int) -> str:
    """One sentence: the cause, and what its removal was measured to give."""
    start = f"{cause.sentence[0].upper()}{cause.sentence[1:]}"
    besides = _besides(trace, cause)
    if best is None:
        done = f"; none of {tried} changes made it {GAIN - 1:.0%} faster" if tried else ""
        return f"{start}{done}.{besides}"
    return (
        f"{start}; with {best.what_if.name} it is {ratio_words(best.ratio)} as fast "
        f"({rate:,.0f} to {best.images_per_second:,.0f} images/s).{besides}"
    )


def _besides(trace: Trace, cause: Cause) -> str:
    """A slip that costs memory even where it costs little time."""
    if not trace.graphs_kept or cause.name == "no-grad":
        return ""
    share = percent(trace.share("evaluation"))
    return (
        f" Besides, its evaluation ({share} of the time) builds graphs for gradients that nobody "
        f"asks for, at {trace.graphs_site}."
    )
