"""The interval of a ratio of speeds, from rounds in which both were measured as neighbours."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from onsight_explain.text import plural

SHOWN = 1.1  # times as fast, at the lower end: less is taken for noise

# Student's t at 97.5%, by the degrees of freedom from 1 on: what 95% of the time is not exceeded.
_T_95: tuple[float, ...] = (
    12.7062,
    4.3027,
    3.1824,
    2.7764,
    2.5706,
    2.4469,
    2.3646,
    2.306,
    2.2622,
    2.2281,
)
_T_95 += (2.201, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.093, 2.086)


@dataclass(frozen=True)
class Interval:
    """How many times as fast: the mean over the rounds, and between which values it lies (95%)."""

    low: float
    ratio: float
    high: float
    rounds: int

    @property
    def is_shown(self) -> bool:
        """Whether even the lower end is a gain worth the name."""
        return self.low >= SHOWN

    @property
    def ends(self) -> str:
        """`5.1 to 6.0`; nothing after a single round, which says nothing about them."""
        if math.isinf(self.high):
            return ""
        return f"{_digits(self.low, self.low)} to {_digits(self.high, self.low)}"

    def __str__(self) -> str:
        """`at least 5.1 times as fast, 5.1 to 6.0, 5 rounds`."""
        if not self.ends:
            return "unknown after a single round"
        many = plural(self.rounds, "round")
        if self.is_shown:
            return f"at least {_digits(self.low, self.low)} times as fast, {self.ends}, {many}"
        return f"{self.ends} times as fast, {many}"

    def facts(self) -> dict[str, float | None]:
        """Plain values; `low` and `high` are null after a single round."""
        ends = {"low": self.low, "high": self.high} if self.ends else {"low": None, "high": None}
        return {"ratio": self.ratio, **ends, "rounds": self.rounds}


def ratio_interval(ratios: Sequence[float]) -> Interval:
    """The geometric mean of ratios above 0, one of each round, with its 95% interval.

    The interval is Student's, of the ratios' logarithms: independent rounds are assumed, and a
    noise that multiplies. One ratio alone says nothing: from 0 to infinity. ValueError without any.
    """
    logs = [math.log(ratio) for ratio in ratios]
    if not logs:
        raise ValueError("an interval needs at least one round")
    middle, freedom = statistics.fmean(logs), len(logs) - 1
    if not freedom:
        return Interval(0.0, math.exp(middle), math.inf, 1)
    t = _T_95[min(freedom, len(_T_95)) - 1]
    margin = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(
        math.exp(middle - margin), math.exp(middle), math.exp(middle + margin), len(logs)
    )


def _digits(value: float, scale: float) -> str:
    """Two digits after the point for ratios near 1, none for large ones."""
    return f"{value:,.{2 if scale < 2 else 1 if scale < 20 else 0}f}"
