"""Runs a mended script against the original, in turns: both rates, and the first losses."""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onsight_explain.delivery.mended import Mended
from onsight_explain.interleave import FEWEST_ROUNDS, Rounds
from onsight_explain.process.bench import ScriptBench, ScriptTrial, compare_losses
from onsight_explain.search.tried import Losses, Untried
from onsight_explain.what_ifs.as_mended import AsMended
from onsight_explain.what_ifs.what_if import WhatIf

_MOST_ROUNDS, _NARROW, _SECONDS = 8, 1.15, 8.0  # until the ends of the interval are that close
_ALIKE = 0.1  # of the mean first loss, where the batches hold other images


class _MendedFailed(Exception):
    """The mended script failed, which is an answer too."""


@dataclass(frozen=True)
class Proof:
    """What came of running both; problem: why there are none, or ""."""

    rounds: Rounds = field(default_factory=Rounds)
    losses: Losses = "not comparable"
    problem: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether the mended script ran, and trained as the original does."""
        return not self.problem and self.losses != "other"


def prove(
    mended: Mended,
    what_ifs: Sequence[WhatIf],
    bench: ScriptBench,
    plain: ScriptTrial,
    window_seconds: float,
) -> Proof:
    """Run both in turns. what_ifs: those mended; plain: the original, which runs already."""
    with tempfile.TemporaryDirectory(prefix="onsight-mended-") as folder:
        path = Path(folder) / mended.script.name
        path.write_bytes(mended.after)
        outside = [one for one in what_ifs if one.environment]
        trial = bench.open((AsMended(str(path)), *outside))

        def changed() -> float:
            try:
                return trial.measure(window_seconds)
            except Untried as error:
                raise _MendedFailed(str(error)) from None

        try:
            rounds = _measured(lambda: plain.measure(window_seconds), changed)
        except _MendedFailed as failed:
            return Proof(problem=f"the mended script failed: {failed}")
        except Untried as error:
            return Proof(problem=f"{mended.script.name} could not be measured again: {error}")
        finally:
            trial.close()
    assert trial.first
    return Proof(rounds, _losses(bench.losses, trial.first.losses, tuple(what_ifs)))


def _measured(plain: Callable[[], float], changed: Callable[[], float]) -> Rounds:
    """Some rounds; more of them where they differ much."""
    rounds, begun = Rounds(), time.monotonic()
    while len(rounds.plain) < _MOST_ROUNDS:
        if len(rounds.plain) >= FEWEST_ROUNDS:
            is_narrow = rounds.interval.high < _NARROW * rounds.interval.low
            if is_narrow or time.monotonic() - begun > _SECONDS:
                break
        rounds.add(plain, changed)
    return rounds


def _losses(plain: list[float], mended: list[float], what_ifs: tuple[WhatIf, ...]) -> Losses:
    """Compared step by step; for batches of other images, by their mean alone."""
    found = compare_losses(plain, mended, what_ifs, [])
    pairs = list(zip(plain, mended, strict=False))
    if found != "not comparable" or not pairs:
        return found
    before, after = (statistics.mean(values) for values in zip(*pairs, strict=True))
    return "alike" if abs(before - after) <= _ALIKE * abs(before) else found
