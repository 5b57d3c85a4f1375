"""Compare two speeds fairly: interleaved rounds, and a confidence interval of their paired ratios.

A machine is never quiet: its clock changes and other work comes and goes. Both ways are therefore
measured as neighbours, round after round, and only the ratio within a round is used.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onsight_explain.console import Messages
from onsight_explain.text import plural
from onsight_explain.threads import is_busy

MIN_ROUNDS = 3  # with fewer, the interval is too wide to be useful
MIN_CLEAR_GAIN = 1.1  # speed-up that the lower end of a clear gain's interval must reach
_MAX_ROUNDS = 8  # more would take long and narrow the interval little
_NARROW_RATIO = 1.15  # high / low of an interval that needs no more rounds

# Student's t at 97.5% for 1, 2, ... degrees of freedom. Beyond the end the last value is used,
# which makes intervals of more than 21 rounds slightly too wide.
_T_95 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.306, 2.2622, 2.2281),
    *(2.201, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.093, 2.086),
)


@dataclass(frozen=True)
class RatioInterval:
    """A speed-up: the geometric mean of the rounds' ratios, with its 95% interval."""

    low: float
    ratio: float
    high: float
    rounds: int
    min_gain: float = MIN_CLEAR_GAIN  # smallest speed-up that can be told from noise

    @property
    def is_clear_gain(self) -> bool:
        """Whether even the lower end of the interval is more than noise."""
        return self.low >= self.min_gain

    @property
    def ends(self) -> str:
        """The ends as `5.1 to 6.0`; empty after a single round, which has no interval."""
        if math.isinf(self.high):
            return ""
        return f"{_format_ratio(self.low, self.low)} to {_format_ratio(self.high, self.low)}"

    def __str__(self) -> str:
        """Format as `at least 5.1 times as fast, 5.1 to 6.0, 5 rounds`."""
        if not self.ends:
            return "unknown after a single round"
        rounds = plural(self.rounds, "round")
        if self.is_clear_gain:
            low = _format_ratio(self.low, self.low)
            return f"at least {low} times as fast, {self.ends}, {rounds}"
        return f"{self.ends} times as fast, {rounds}"

    def facts(self) -> dict[str, float | None]:
        """Return plain values; `low` and `high` are None after a single round."""
        ends = {"low": self.low, "high": self.high} if self.ends else {"low": None, "high": None}
        return {"ratio": self.ratio, **ends, "rounds": self.rounds}


@dataclass
class PairedRounds:
    """Rounds that each measure the rate of a baseline and of a changed version."""

    baseline: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """The speed-up of the changed version in each round."""
        pairs = zip(self.baseline, self.changed, strict=True)
        return [changed / baseline for baseline, changed in pairs]

    @property
    def median_ratio(self) -> float:
        """The median speed-up, to choose by, because one disturbed round hardly changes it."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> RatioInterval:
        """The speed-up with its 95% interval. Raises ValueError before the first round."""
        return ratio_interval(self.ratios)

    def are_enough(self, is_late: bool) -> bool:
        """Return whether to stop: the interval is narrow, it is late, or there are many rounds."""
        if len(self.baseline) < MIN_ROUNDS:
            return False
        is_narrow = self.interval.high < _NARROW_RATIO * self.interval.low
        return is_narrow or is_late or len(self.baseline) >= _MAX_ROUNDS

    def measure(self, baseline: Callable[[], float], changed: Callable[[], float]) -> None:
        """Measure a round. The order of the two alternates, so that a steady drift cancels out."""
        if len(self.baseline) % 2:
            self.changed.append(changed())
            self.baseline.append(baseline())
        else:
            self.baseline.append(baseline())
            self.changed.append(changed())


def ratio_interval(ratios: Sequence[float]) -> RatioInterval:
    """Return the geometric mean of the rounds' ratios with its 95% confidence interval.

    It is Student's t interval of the ratios' logarithms. That assumes independent rounds and noise
    that multiplies, and works from two rounds on, where an interval of the median by order
    statistics needs six. The interval of one ratio is 0 to infinity. ValueError without any.
    """
    logs = [math.log(ratio) for ratio in ratios]
    if not logs:
        raise ValueError("an interval needs at least one round")
    mean, freedom = statistics.fmean(logs), len(logs) - 1
    if not freedom:
        return RatioInterval(0.0, math.exp(mean), math.inf, 1)
    t = _T_95[min(freedom, len(_T_95)) - 1]
    margin = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return RatioInterval(
        math.exp(mean - margin), math.exp(mean), math.exp(mean + margin), len(logs)
    )


def warn_if_busy(messages: Messages) -> bool:
    """Return whether other processes leave too few cores, and warn if they do."""
    if not is_busy():
        return False
    messages.warn(
        "this machine is busy with other work, which slows several threads down more than one; "
        "measure again when it is idle"
    )
    return True


def _format_ratio(value: float, scale: float) -> str:
    """Format with two decimals where `scale` is near 1, none where it is large."""
    return f"{value:,.{2 if scale < 2 else 1 if scale < 20 else 0}f}"
