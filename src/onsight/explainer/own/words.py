"""The verdict on a run's step, in one sentence: what holds it back, and what helps."""

from onsight.explainer.compare.fit import fit_costs
from onsight.explainer.own.changes import FlagChange, RunChange, fields_of, unset_among
from onsight.explainer.own.explain import OwnExplanation
from onsight.words import percent
from onsight_explain.search import MIN_GAIN, TrialResult
from onsight_explain.text import step_times

_WAITING = 0.3  # of the time: if it waits longer, waiting is the cause
_COMPUTE = ("forward", "backward", "optimizer")


def cause(found: OwnExplanation) -> str:
    """The short name of the cause: threads, loader, small-batch, compute or other."""
    before = found.before
    if found.best and unset_among(found.best.changes) and _is_shown(found):
        return "threads"
    if before.share("data") >= _WAITING:
        return "loader"
    if found.best and "batch_size" in found.best.groups:
        return "small-batch"
    return "compute" if before.share(*_COMPUTE) >= 0.5 else "other"


def verdict(found: OwnExplanation) -> str:
    """The cause with its figures, the flags to change, and their gain."""
    return f"{_cause_words(found)}; {_gain_words(found)}."


def _cause_words(found: OwnExplanation) -> str:
    before = found.before
    (step,) = step_times(before.step_seconds)
    kind = cause(found)
    if kind == "threads":
        assert found.settings
        return (
            f"In steps of {step}, the compute threads are held back by {found.settings.settings} "
            "in the environment"
        )
    if kind == "loader":
        return (
            f"Data bound: {percent(before.share('data'))} of the time is spent waiting for images"
        )
    if kind == "small-batch":
        fixed = _fixed_share(found)
        much = f"about {percent(fixed)}" if fixed else "much"
        return (
            f"Overhead bound: {much} of a step of {step} is a fixed cost (Python, starting "
            f"operations) that does not depend on the batch size; batches of "
            f"{found.config.batch_size} leave {found.device} nearly idle"
        )
    if kind == "compute":
        flops = before.flops / before.step_seconds
        peak = found.ceilings.peak(found.config.precision)
        of = f", at {percent(flops / peak[1])} of its {peak[0]} peak for matrices" if peak else ""
        return (
            f"Compute bound: {found.device} spends {percent(before.share(*_COMPUTE))} of the time "
            f"on forward, backward and update{of}"
        )
    outside = percent(before.share("other", "augment", "sync"))
    return f"{outside} of the time is spent outside the network"


def _gain_words(found: OwnExplanation) -> str:
    best = found.best
    if best is None:
        count = len(found.tried)
        return (
            f"none of {count} other flags is {MIN_GAIN - 1:.0%} faster"
            if count
            else "no flag was tried"
        )
    flags = with_words(best)
    if not _is_shown(found):
        return f"nothing was shown to make it faster: with {flags}, the best, it is {best.interval}"
    note = ""
    if "batch_size" in best.groups:
        note = ", but with fewer updates per epoch it may need more epochs"
    return f"with {flags} it is {best.interval}{note}"


def with_words(best: TrialResult[RunChange]) -> str:
    """The changes as one would make them: what is unset, then the flags."""
    unset = unset_among(best.changes)
    flags = " ".join(one.label for one in best.changes if isinstance(one, FlagChange))
    return " and ".join(filter(None, (unset.label if unset else "", flags)))


def _is_shown(found: OwnExplanation) -> bool:
    best = found.best
    return bool(best and best.interval and best.interval.is_clear_gain)


def _fixed_share(found: OwnExplanation) -> float | None:
    """The fixed cost as a share of a step, by a line through the steps of several batch sizes."""
    own = found.config.batch_size
    steps = {own: found.before.step_seconds}
    for one in found.tried:
        if one.groups == {"batch_size"} and not one.problem:
            (size,) = fields_of(one.changes).values()
            steps[size] = size / one.images_per_second
    fit = fit_costs(steps)
    return fit.fixed_seconds / fit.step_seconds(own) if fit else None
