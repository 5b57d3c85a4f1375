"""What-ifs really run, each in a fresh process, and the best of them together."""

import statistics
from dataclasses import dataclass, field
from typing import Literal

from onsight.errors import ScriptFailed
from onsight.explain.script.launch import Launcher
from onsight.explain.script.trace import Changes, Trace
from onsight.explain.script.whatifs import WhatIf
from onsight.report.console import Story

GAIN = 1.05  # times the speed, at least, to be called faster on a machine that is never quiet
_BETTER = 1.03  # times the speed of what a combination would replace
_COMBINED = 4  # what-ifs in a combination, at most
_SAME, _CLOSE, _ALIKE = 1e-3, 0.02, 0.1  # relative differences of losses

Losses = Literal["same", "close", "alike", "other", "not comparable"]


@dataclass(frozen=True)
class Tried:
    """What a what-if gave: ratio to the script as it is; problem: why it could not run, or ""."""

    what_if: WhatIf
    images_per_second: float = 0.0
    ratio: float = 0.0
    losses: Losses = "not comparable"
    problem: str = ""
    notes: list[str] = field(default_factory=list)


class Trials:
    """Runs what-ifs beside the script as it is, and tells how each went."""

    def __init__(self, launcher: Launcher, plain: Trace, story: Story) -> None:
        self.launcher, self.story = launcher, story
        self.plain = plain
        self.rates = [plain.images_per_second]

    @property
    def rate(self) -> float:
        """images/s of the script as it is, over its runs so far."""
        return statistics.mean(self.rates)

    def run(self, what_ifs: list[WhatIf]) -> tuple[list[Tried], Tried | None]:
        """Each alone, then the best together; the best of all if it is faster."""
        tried = [self.try_(one) for one in what_ifs]
        self.rates.append(self.launcher.run().images_per_second)
        self.story.say(f"as it is, again: {self.rates[-1]:,.0f} images/s")
        tried = [self._rated(one) for one in tried]
        return tried, self._combine(tried)

    def try_(self, what_if: WhatIf) -> Tried:
        """One of them."""
        tried = self._try(what_if)
        said = tried.problem or f"{tried.images_per_second:,.0f} images/s"
        self.story.say(f"what if {what_if.name}: {said}")
        return tried

    def _try(self, what_if: WhatIf) -> Tried:
        try:
            trace = self.launcher.run(what_if.changes)
        except ScriptFailed as error:
            return Tried(what_if, problem=str(error).splitlines()[-1])
        if not trace.images:
            return Tried(what_if, problem="no training step in time")
        losses = compare_losses(self.plain.losses, trace.losses, what_if.changes, trace.notes)
        return self._rated(
            Tried(what_if, trace.images_per_second, losses=losses, notes=trace.notes)
        )

    def _rated(self, tried: Tried) -> Tried:
        ratio = tried.images_per_second / self.rate
        return Tried(
            tried.what_if,
            tried.images_per_second,
            ratio,
            tried.losses,
            tried.problem,
            tried.notes,
        )

    def _combine(self, tried: list[Tried]) -> Tried | None:
        """Greedily: the best, then each next one that adds to it."""
        faster = sorted((one for one in tried if one.ratio >= GAIN), key=lambda one: -one.ratio)
        if not faster:
            return None
        best = faster[0]
        for other in faster[1:]:
            if len(best.what_if.changes.changed()) >= _COMBINED:
                break
            if best.what_if.kinds & other.what_if.kinds:
                continue
            both = self.try_(best.what_if.with_(other.what_if))
            if both.ratio >= _BETTER * best.ratio:
                best = both
        return best


def compare_losses(
    plain: list[float], changed: list[float], changes: Changes, notes: list[str]
) -> Losses:
    """Whether the first losses are the same numbers, or tell of the same training."""
    if changes.batch_factor or notes:
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
