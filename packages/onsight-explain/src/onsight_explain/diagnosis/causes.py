"""What holds a script back: the cause whose removal was shown to gain most, with the evidence."""

import math
from dataclasses import replace

from onsight_explain.script.trace import Trace
from onsight_explain.search import MIN_GAIN, TrialResult
from onsight_explain.search_table import is_beyond_noise
from onsight_explain.text import percent, plural
from onsight_explain.what_ifs.batch import LargerBatch
from onsight_explain.what_ifs.copies import PinnedMemory
from onsight_explain.what_ifs.evaluation import NoGrad, evaluation_cause
from onsight_explain.what_ifs.loading import (
    LOADING_GROUP,
    Workers,
    has_too_many_workers,
    loading_cause,
)
from onsight_explain.what_ifs.threads import DefaultThreadSettings
from onsight_explain.what_ifs.what_if import Cause, WhatIf

TOO_NOISY = "noise"  # the name of this cause
_DOMINANT_SHARE = 0.5  # fraction of the time; a larger part is the cause if no change helps
_TIE = 0.9  # fraction of the best lower bound that counts as equally good: timings are noisy
_MISTAKES = (NoGrad, DefaultThreadSettings)  # these what-ifs remove an observed fault
# Groups of what-ifs that also help where there is no mistake.
_USUAL_GAINS = {
    *("precision", "memory_format", "matmul_precision", "compiling", "optimizer"),
    LargerBatch.group,
}


def find_cause(
    trace: Trace,
    tried: list[TrialResult[WhatIf]],
    best: TrialResult[WhatIf] | None,
    cores: int,
    noise: str = "",
    noise_ratio: float = math.inf,
) -> Cause:
    """Return the cause behind the what-ifs that certainly gained most, or the largest phase.

    noise: why timings cannot show more than what certainly gained, or "" if they can.
    noise_ratio: how many times too long noise may have made a part of the time; waiting for the
    loader is the cause, even if no gain can be shown, if that does not explain it.

    What-ifs that cannot be distinguished count together: the cause of most of them is returned. A
    mistake that certainly costs time comes before larger batches and other ways to compute, which
    also help where there is no mistake. `best` was confirmed in separate rounds.
    """
    certain = _certain(tried, best)
    if not certain:
        if not noise:
            return _largest_phase(trace)
        if is_beyond_noise(trace.share("data"), noise_ratio):
            return replace(loading_cause(trace), noise=noise)
        return Cause(TOO_NOISY, "too noisy to tell", noise)
    threshold = _TIE * max(result.low for result in certain)
    ranked = sorted(
        (result for result in certain if result.low >= threshold), key=lambda result: -result.low
    )
    if all(result.changes[0].group in _USUAL_GAINS for result in ranked):
        mistakes = [
            result for result in certain if _removes_mistake(result.changes[0], trace, cores)
        ]
        ranked = mistakes or ranked
    # Whether processes and threads outnumber the cores, and fewer workers were faster.
    is_crowded = any(
        _removes_crowd(change, trace, cores)
        for result in tried
        for change in result.changes
        if result.ratio >= MIN_GAIN
    )
    causes = [_cause_of(result, trace, is_crowded, cores, bool(noise)) for result in ranked]
    names = [cause.name for cause in causes]
    return max(causes, key=lambda cause: names.count(cause.name))  # the first of equals


def verdict(trace: Trace, cause: Cause, best: TrialResult[WhatIf] | None, tried: int) -> str:
    """Return the cause and what removing it gained at least, of `tried` changes, in a sentence."""
    start = f"{cause.sentence[0].upper()}{cause.sentence[1:]}"
    rest = _gain_words(best, tried)
    if cause.noise:
        unknown = "" if cause.name == TOO_NOISY else "; too noisy to tell what helps"
        rest = f"{unknown}: {cause.noise}"
    if cause.noise or cause.name == TOO_NOISY:
        rest += "; measure again when this machine is idle"
    return f"{start}{rest}.{_memory_mistake(trace, cause)}"


def _certain(
    tried: list[TrialResult[WhatIf]], best: TrialResult[WhatIf] | None
) -> list[TrialResult[WhatIf]]:
    """Return the results with a clear gain.

    The winner counts with its confirming rounds if it is a single change, or if its first change
    had no clear gain alone.
    """
    certain = [result for result in tried if result.is_clear_gain]
    if best is None or not best.is_clear_gain:
        return certain
    others = [result for result in certain if result.changes != best.changes[:1]]
    is_among_them = len(others) < len(certain)
    return certain if is_among_them and len(best.changes) > 1 else [*others, best]


def _cause_of(
    result: TrialResult[WhatIf], trace: Trace, is_crowded: bool, cores: int, is_noisy: bool
) -> Cause:
    what_if = result.changes[0]
    if isinstance(what_if, LargerBatch) and what_if.fixed_share(result.low) < _DOMINANT_SHARE:
        # What else limits the speed is read from the phases, which other work makes longer.
        return Cause(TOO_NOISY, "too noisy to tell why") if is_noisy else _largest_phase(trace)
    if what_if.group == LOADING_GROUP and is_crowded:
        assert trace.loader
        return Cause(
            "oversubscribed",
            f"{trace.loader.workers} loader workers and {trace.threads} compute threads share "
            f"{plural(cores, 'core')} and slow each other down",
        )
    return what_if.cause(trace)


def _removes_mistake(what_if: WhatIf, trace: Trace, cores: int) -> bool:
    return isinstance(what_if, _MISTAKES) or _removes_crowd(what_if, trace, cores)


def _removes_crowd(what_if: WhatIf, trace: Trace, cores: int) -> bool:
    """Return whether a what-if has fewer workers, and those of the script crowd the cores."""
    if trace.loader is None or not has_too_many_workers(trace, cores):
        return False
    return isinstance(what_if, Workers) and what_if.value < trace.loader.workers


def _largest_phase(trace: Trace) -> Cause:
    """Return the largest phase as the cause, for when no change was tried or none helped."""
    other = trace.share("other")
    evaluation = trace.share("evaluation")
    if evaluation > _DOMINANT_SHARE:
        return NoGrad(True).cause(trace) if trace.graphs_kept else evaluation_cause(trace)
    compute = trace.share("forward", "backward", "optimizer") + evaluation
    parts = {
        "waiting for the loader": trace.share("data"),
        "the network computing": compute,
        "Python between torch's calls": other,
    }
    if _DOMINANT_SHARE > max(parts.values()) > trace.share("copy", "sync"):
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


def _gain_words(best: TrialResult[WhatIf] | None, count: int) -> str:
    only = "the only change tried"
    if best is None or best.interval is None:
        made = f"{only} did not make" if count == 1 else f"none of {count} changes made"
        return f"; {made} it {MIN_GAIN - 1:.0%} faster" if count else ""
    if not best.interval.is_clear_gain:
        rank = only if count == 1 else f"the best of {count} changes"
        return (
            f"; nothing was shown to make it faster: with {best.name}, {rank}, it is "
            f"{best.interval} (below {best.interval.min_gain:.2f}, noise could explain it)"
        )
    return f"; with {best.name} it is {best.interval}"


def _memory_mistake(trace: Trace, cause: Cause) -> str:
    """Return a mistake that wastes memory, even if it costs little time."""
    if not trace.graphs_kept or cause.name == "no-grad":
        return ""
    share = percent(trace.share("evaluation"))
    return (
        f" Besides, its evaluation ({share} of the time) builds graphs for gradients that are "
        f"never used, at {trace.graphs_site}."
    )
