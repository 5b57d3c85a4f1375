"""A comparison in plain sentences: who is fastest, by what ratio, and the main reason."""

from itertools import groupby

from onsight.explainer.compare.measure import Comparison
from onsight.explainer.compare.outcome import LEAST_LEAD, Crossover, PerImageResults, outcomes
from onsight.words import listed
from onsight_explain.text import ratio_words, step_times

_ROUGH = 0.15  # if a line misses a step by more, its costs are only approximate

_BY = {"fixed": ", by a lower fixed cost per step", "image": ", by less time per image", "": ""}


def sentence(comparison: Comparison, outcome: PerImageResults) -> str:
    """Who is fastest at a batch size, by what ratio and why."""
    if outcome.rival:
        why = _reason(comparison, outcome) or "the fitted costs do not explain it"
        lead = ratio_words(outcome.ratio)
        return f"{_subject(outcome)} wins {lead} over {outcome.rival}: {why}"
    if len(outcome.winners) > 1:
        names = listed(outcome.winners)
        return f"no winner: {names} are level (within the noise or {LEAST_LEAD - 1:.0%})"
    (name,) = outcome.winners
    fit = comparison.fits[name]
    if fit is None:
        return f"only {name} was timed"
    share = fit.fixed_seconds / fit.step_seconds(outcome.batch_size)
    (cost,) = step_times(fit.fixed_seconds)
    return f"only {name} was timed; {share:.0%} of its step is a fixed cost ({cost})"


def crossing(found: Crossover) -> str:
    """Where one candidate becomes faster than another."""
    return (
        f"By the fitted costs, {found.faster} overtakes {found.slower} at about "
        f"batch {found.batch_size:,}."
    )


def verdict(comparison: Comparison) -> str:
    """One sentence on the whole comparison."""
    found = outcomes(comparison)
    if not found:
        return "Nothing could be timed."
    groups = groupby(found, key=lambda one: (one.winners, bool(one.rival)))
    return "Fastest " + "; ".join(_part(list(group)) for _, group in groups) + "."


def _reason(comparison: Comparison, outcome: PerImageResults) -> str:
    """The cost that makes most of the difference; empty if the fits cannot tell."""
    winner, rival = comparison.fits[outcome.winners[0]], comparison.fits[outcome.rival]
    if not outcome.cause or winner is None or rival is None:
        return ""
    about = "about " if max(winner.miss, rival.miss) > _ROUGH else ""
    if outcome.cause == "image":
        mine, theirs = step_times(winner.image_seconds, rival.image_seconds)
        return f"{about}{mine} per image against {theirs}"
    share = rival.fixed_seconds / rival.step_seconds(outcome.batch_size)
    mine, theirs = step_times(winner.fixed_seconds, rival.fixed_seconds)
    return (
        f"{about}{share:.0%} of a step of {outcome.rival} is a fixed cost, "
        f"{theirs} for any batch size, against {mine}"
    )


def _part(group: list[PerImageResults]) -> str:
    """Neighbouring batch sizes with the same winners."""
    sizes = [one.batch_size for one in group]
    where = f"at batch {sizes[0]:,}" + (f" to {sizes[-1]:,}" if len(sizes) > 1 else "")
    best = max(group, key=lambda one: one.ratio)
    if best.rival:
        most = "up to " if len(sizes) > 1 else ""
        lead = f"{most}{ratio_words(best.ratio)} over {best.rival}{_BY[best.cause]}"
        return f"{where}: {' or '.join(best.winners)} ({lead})"
    alone = len(best.winners) == 1
    return (
        f"{where}: {best.winners[0]}, the only one timed" if alone else f"{where}: no clear winner"
    )


def _subject(outcome: PerImageResults) -> str:
    first, *level = outcome.winners
    return f"{first}, level with {listed(level)}," if level else first
