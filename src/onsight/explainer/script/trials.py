"""Runs the what-ifs, each in a fresh process, and then the best of them together."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from onsight.errors import ScriptFailed
from onsight.explainer.gain import GAIN, combine
from onsight.explainer.script.trace import Trace
from onsight.explainer.what_ifs.what_if import WhatIf
from onsight.report.console import Reporter

_TOGETHER = 4  # what-ifs combined with the best one, at most
_TURN = 3  # what-ifs between two runs of the script as it is
_SAME, _CLOSE, _ALIKE = 1e-3, 0.02, 0.1  # relative differences of losses

Losses = Literal["same", "close", "alike", "other", "not comparable"]
WhatIfs = tuple[WhatIf, ...]


@dataclass(frozen=True)
class Tried:
    """What one or several what-ifs gave.

    ratio: to the script as it is, run before and after; problem: why there is none, or "".
    """

    what_ifs: WhatIfs
    images_per_second: float = 0.0
    ratio: float = 0.0
    losses: Losses = "not comparable"
    problem: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The changes in a few words."""
        return " + ".join(one.label for one in self.what_ifs)

    @property
    def groups(self) -> set[str]:
        """What it changes."""
        return {one.group for one in self.what_ifs}


class Trials:
    """Runs what-ifs in turns with the script as it is, and reports each result."""

    def __init__(self, run: Callable[..., Trace], plain: Trace, reporter: Reporter) -> None:
        self.run_with, self.reporter = run, reporter
        self.plain = plain
        self.rates = [plain.images_per_second]

    @property
    def rate(self) -> float:
        """images/s of the script as it is: the median of its runs."""
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """How much the script's own runs differ, as a share of their median."""
        return (max(self.rates) - min(self.rates)) / self.rate

    def run(self, what_ifs: list[WhatIf]) -> tuple[list[Tried], Tried | None]:
        """Try each alone, then the best together. Returns all, and the best if it proves faster."""
        tried: list[Tried] = []
        for start in range(0, len(what_ifs), _TURN):
            tried += self._turn([(one,) for one in what_ifs[start : start + _TURN]])
        best = combine(tried, self._try_both, _TOGETHER)
        return tried, self._confirm(best) if best else None

    def _turn(self, changes: list[WhatIfs]) -> list[Tried]:
        """Run some of them between two runs of the script as it is."""
        tried = [self._try(one) for one in changes]
        level = statistics.mean([self.rates[-1], self._plain_again()])
        return [replace(one, ratio=one.images_per_second / level) for one in tried]

    def _plain_again(self) -> float:
        self.rates.append(self.run_with().images_per_second)
        self.reporter.say(f"unchanged, again: {self.rates[-1]:,.0f} images/s")
        return self.rates[-1]

    def _try(self, what_ifs: WhatIfs) -> Tried:
        tried = self._run(what_ifs)
        said = tried.problem or f"{tried.images_per_second:,.0f} images/s"
        self.reporter.say(f"what if {tried.name}: {said}")
        return tried

    def _run(self, what_ifs: WhatIfs) -> Tried:
        try:
            trace = self.run_with(what_ifs)
        except ScriptFailed as error:
            return Tried(what_ifs, problem=str(error).splitlines()[-1])
        if not trace.images:
            return Tried(what_ifs, problem="no training step in time")
        losses = compare_losses(self.plain.losses, trace.losses, what_ifs, trace.notes)
        return Tried(what_ifs, trace.images_per_second, losses=losses, notes=trace.notes)

    def _try_both(self, best: Tried, other: Tried) -> Tried:
        both = self._try(best.what_ifs + other.what_ifs)
        return replace(both, ratio=both.images_per_second / self.rates[-1])

    def _confirm(self, best: Tried) -> Tried | None:
        """Run it again beside the script as it is: the best of many runs was also the luckiest."""
        (again,) = self._turn([best.what_ifs])
        if again.problem:
            return best
        rate = statistics.mean([best.images_per_second, again.images_per_second])
        ratio = statistics.mean([best.ratio, again.ratio])
        return replace(best, images_per_second=rate, ratio=ratio) if ratio >= GAIN else None


def compare_losses(
    plain: list[float], changed: list[float], what_ifs: WhatIfs, notes: list[str]
) -> Losses:
    """Whether the first losses are the same numbers, or at least show the same training."""
    if notes or not all(one.keeps_batches for one in what_ifs):
        return "not comparable"
    pairs = list(zip(plain, changed, strict=False))
    if not pairs:
        return "not comparable"
    worst = max(abs(one - other) / max(abs(one), 1e-6) for one, other in pairs)
    if worst <= _SAME:
        return "same"
    if worst <= _CLOSE:
        return "close"
    means = [statistics.mean(values) for values in zip(*pairs, strict=True)]
    return "alike" if abs(means[0] - means[1]) <= _ALIKE * abs(means[0]) else "other"
