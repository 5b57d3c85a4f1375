"""Two speeds measured in turns, so that whatever else the machine does slows both alike."""

from collections.abc import Callable
from dataclasses import dataclass, field

from onsight_explain.interval import Interval, ratio_interval

FEWEST_ROUNDS = 3  # for an interval that says something


@dataclass
class Rounds:
    """Rates of two ways, one of each in every round."""

    plain: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """How many times as fast the changed way was in each round."""
        pairs = zip(self.plain, self.changed, strict=True)
        return [changed / plain for plain, changed in pairs]

    @property
    def interval(self) -> Interval:
        """How many times as fast the changed way is. ValueError before the first round."""
        return ratio_interval(self.ratios)

    def add(self, plain: Callable[[], float], changed: Callable[[], float]) -> None:
        """Measure both once; who begins alternates, so that a steady drift cancels out."""
        if len(self.plain) % 2:
            self.changed.append(changed())
            self.plain.append(plain())
        else:
            self.plain.append(plain())
            self.changed.append(changed())
