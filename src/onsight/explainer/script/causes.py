"""What holds a script back: the cause whose removal gained most, with the evidence."""

from onsight.explainer.gain import GAIN
from onsight.explainer.script.trace import Trace
from onsight.explainer.script.trials import Tried
from onsight.explainer.what_ifs.loading import LOADING, loading_cause
from onsight.explainer.what_ifs.pinned import PinnedMemory
from onsight.explainer.what_ifs.what_if import Cause
from onsight.explainer.what_ifs.workers import Workers
from onsight.words import percent, plural, ratio_words


def find_cause(trace: Trace, tried: list[Tried], cores: int) -> Cause:
    """The cause of the what-if that gained most; without any, of the largest phase."""
    faster = [one for one in tried if one.ratio >= GAIN]
    if not faster:
        return _by_phases(trace)
    (best,) = max(faster, key=lambda one: one.ratio).what_ifs
    if best.group in LOADING and _is_crowded(trace, faster, cores):
        return _oversubscribed(trace, cores)
    return best.cause(trace)


def _is_crowded(trace: Trace, faster: list[Tried], cores: int) -> bool:
    """Whether there are more processes and threads than cores, and fewer workers were faster."""
    workers = trace.loader.workers if trace.loader else 0
    if workers < 2 or workers + trace.threads <= cores:
        return False
    changes = (change for one in faster for change in one.what_ifs)
    return any(isinstance(change, Workers) and change.value < workers for change in changes)


def _oversubscribed(trace: Trace, cores: int) -> Cause:
    assert trace.loader
    return Cause(
        "oversubscribed",
        f"{trace.loader.workers} loader workers and {trace.threads} compute threads share "
        f"{plural(cores, 'core')} and get in each other's way",
    )


def _by_phases(trace: Trace) -> Cause:
    """Where the time goes, if nothing was tried or nothing helped."""
    other = trace.share("other")
    compute = trace.share("forward", "backward", "optimizer", "evaluation")
    if trace.share("data") > max(compute, other):
        return loading_cause(trace)
    if trace.pageable_bytes_per_step and trace.share("copy") > compute:
        return PinnedMemory(True).cause(trace)
    if compute >= other:
        return Cause("compute", f"{percent(compute)} of the time is the network computing")
    return Cause(
        "other",
        f"{percent(other)} of the time is Python between torch's calls: metrics, "
        "logging, the loop itself",
    )


def verdict(trace: Trace, cause: Cause, best: Tried | None, rate: float, tried: int) -> str:
    """One sentence: the cause, and the measured gain of removing it."""
    start = f"{cause.sentence[0].upper()}{cause.sentence[1:]}"
    besides = _besides(trace, cause)
    if best is None:
        done = f"; none of {tried} changes made it {GAIN - 1:.0%} faster" if tried else ""
        return f"{start}{done}.{besides}"
    return (
        f"{start}; with {best.name} it is {ratio_words(best.ratio)} as fast "
        f"({rate:,.0f} to {best.images_per_second:,.0f} images/s).{besides}"
    )


def _besides(trace: Trace, cause: Cause) -> str:
    """A mistake that costs memory even if it costs little time."""
    if not trace.graphs_kept or cause.name == "no-grad":
        return ""
    share = percent(trace.share("evaluation"))
    return (
        f" Besides, its evaluation ({share} of the time) builds graphs for gradients that are "
        f"never used, at {trace.graphs_site}."
    )
