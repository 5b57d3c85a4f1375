"""What holds a script back: the cause whose removal is shown to gain most, with the evidence."""

from onsight_explain.script.trace import Trace
from onsight_explain.search.gain import GAIN
from onsight_explain.search.tried import Tried
from onsight_explain.text import percent, plural
from onsight_explain.what_ifs.batch import LargerBatch
from onsight_explain.what_ifs.inference_mode import evaluation_cause
from onsight_explain.what_ifs.loading import LOADING, is_crowded, loading_cause
from onsight_explain.what_ifs.no_grad import NoGrad
from onsight_explain.what_ifs.pinned import PinnedMemory
from onsight_explain.what_ifs.thread_settings import ThreadSettings
from onsight_explain.what_ifs.what_if import Cause, WhatIf
from onsight_explain.what_ifs.workers import Workers

_HALF = 0.5  # of the time, for a part of it to be the cause if no change helps
_TIE = 0.9  # times the best lower end: as good, on a machine that is never quiet
_MISTAKES = (NoGrad, ThreadSettings)  # remove what nobody wants, where it was seen
_ARITHMETIC = {"precision", "memory_format", "matmul_precision", "compiling", "optimizer"}


def find_cause(
    trace: Trace, tried: list[Tried[WhatIf]], best: Tried[WhatIf] | None, cores: int
) -> Cause:
    """The cause that the what-ifs which surely gained most stand for; without, the largest phase.

    best: proven in rounds of its own. What-ifs that cannot be told apart count together: the cause
    of most of them is taken. A mistake that surely costs time comes before other ways to compute
    the same, which gain beside it too.
    """
    sure = _sure(tried, best)
    if not sure:
        return _by_phases(trace)
    level = _TIE * max(one.low for one in sure)
    most = sorted((one for one in sure if one.low >= level), key=lambda one: -one.low)
    if all(one.changes[0].group in _ARITHMETIC for one in most):
        most = [one for one in sure if isinstance(one.changes[0], _MISTAKES)] or most
    faster = [one for one in tried if one.ratio >= GAIN]
    causes = [_cause_of(one, trace, faster, cores) for one in most]
    names = [cause.name for cause in causes]
    return max(causes, key=lambda cause: names.count(cause.name))  # of equals, the first


def _sure(tried: list[Tried[WhatIf]], best: Tried[WhatIf] | None) -> list[Tried[WhatIf]]:
    """Those shown to gain; the winner by its own rounds, if it is one change or else unknown."""
    sure = [one for one in tried if _is_sure(one)]
    if best is None or not _is_sure(best):
        return sure
    others = [one for one in sure if one.changes != best.changes[:1]]
    is_known = len(others) < len(sure)
    return sure if is_known and len(best.changes) > 1 else [*others, best]


def _is_sure(one: Tried[WhatIf]) -> bool:
    return one.interval is not None and one.interval.is_shown


def _cause_of(one: Tried[WhatIf], trace: Trace, faster: list[Tried[WhatIf]], cores: int) -> Cause:
    what_if = one.changes[0]
    if isinstance(what_if, LargerBatch) and what_if.fixed_share(one.low) < _HALF:
        return _by_phases(trace)
    if what_if.group in LOADING and _workers_crowd(trace, faster, cores):
        assert trace.loader
        return Cause(
            "oversubscribed",
            f"{trace.loader.workers} loader workers and {trace.threads} compute threads share "
            f"{plural(cores, 'core')} and get in each other's way",
        )
    return what_if.cause(trace)


def _workers_crowd(trace: Trace, faster: list[Tried[WhatIf]], cores: int) -> bool:
    """Whether there are more processes and threads than cores, and fewer workers were faster."""
    if trace.loader is None or not is_crowded(trace, cores):
        return False
    most = trace.loader.workers
    changes = (change for one in faster for change in one.changes)
    return any(isinstance(change, Workers) and change.value < most for change in changes)


def _by_phases(trace: Trace) -> Cause:
    """Where the time goes, if nothing was tried or nothing helped."""
    other = trace.share("other")
    evaluation = trace.share("evaluation")
    if evaluation > _HALF:
        return NoGrad(True).cause(trace) if trace.graphs_kept else evaluation_cause(trace)
    compute = trace.share("forward", "backward", "optimizer") + evaluation
    parts = {
        "waiting for the loader": trace.share("data"),
        "the network computing": compute,
        "Python between torch's calls": other,
    }
    if _HALF > max(parts.values()) > trace.share("copy", "sync"):
        largest = sorted(parts.items(), key=lambda part: -part[1])
        shares = ", ".join(f"{percent(share)} is {name}" for name, share in largest)
        return Cause("spread", f"no part takes half of the time: {shares}")
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


def verdict(trace: Trace, cause: Cause, best: Tried[WhatIf] | None, tried: int) -> str:
    """One sentence: the cause, and what removing it gained at least. tried: how many changes."""
    start = f"{cause.sentence[0].upper()}{cause.sentence[1:]}"
    return f"{start}{_gained(best, tried)}.{_besides(trace, cause)}"


def _gained(best: Tried[WhatIf] | None, count: int) -> str:
    if best is None or best.interval is None:
        return f"; none of {count} changes made it {GAIN - 1:.0%} faster" if count else ""
    if not best.interval.is_shown:
        return (
            f"; nothing was shown to make it faster: with {best.name}, the best of {count} "
            f"changes, it is {best.interval}"
        )
    return f"; with {best.name} it is {best.interval}"


def _besides(trace: Trace, cause: Cause) -> str:
    """A mistake that costs memory even if it costs little time."""
    if not trace.graphs_kept or cause.name == "no-grad":
        return ""
    share = percent(trace.share("evaluation"))
    return (
        f" Besides, its evaluation ({share} of the time) builds graphs for gradients that are "
        f"never used, at {trace.graphs_site}."
    )
