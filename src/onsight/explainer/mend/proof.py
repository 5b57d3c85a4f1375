"""Runs a mended script against the original, in turns: both rates, and the first losses."""

import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onsight.errors import ScriptFailed
from onsight.explainer.interleave import Rounds, interleave
from onsight.explainer.mend.mended import Mended
from onsight.explainer.script.launch import Launcher
from onsight.explainer.script.trace import Trace
from onsight.explainer.script.trials import Losses, compare_losses
from onsight.explainer.what_ifs.as_mended import AsMended
from onsight.explainer.what_ifs.what_if import WhatIf

_ALIKE = 0.1  # of the mean first loss, where the batches hold other pictures


class _MendedFailed(Exception):
    """The mended script failed, which is an answer too."""


@dataclass(frozen=True)
class Proof:
    """What came of running both; problem: the mended script's own failure, or ""."""

    rounds: Rounds = field(default_factory=Rounds)
    losses: Losses = "not comparable"
    problem: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether the mended script ran, and trained as the original does."""
        return not self.problem and self.losses != "other"


def prove(mended: Mended, what_ifs: Sequence[WhatIf], launcher: Launcher) -> Proof:
    """Run both in turns. what_ifs: those that were mended. Raises ScriptFailed by the original."""
    with tempfile.TemporaryDirectory(prefix="onsight-mended-") as folder:
        path = Path(folder) / mended.script.name
        path.write_bytes(mended.after)
        changes = [AsMended(str(path)), *(one for one in what_ifs if one.environment)]
        traces: dict[bool, Trace] = {}

        def plain() -> float:
            traces[False] = _run(launcher, [])
            return traces[False].images_per_second

        def changed() -> float:
            try:
                traces[True] = _run(launcher, changes)
            except ScriptFailed as error:
                raise _MendedFailed from error
            return traces[True].images_per_second

        try:
            rounds = interleave(plain, changed)
        except _MendedFailed as failed:
            return Proof(problem=str(failed.__cause__).replace(str(path), path.name))
    return Proof(rounds, _losses(traces[False], traces[True], tuple(what_ifs)))


def _run(launcher: Launcher, what_ifs: Sequence[WhatIf]) -> Trace:
    trace = launcher.run(what_ifs)
    if not trace.images_per_second:
        raise ScriptFailed("no training step was seen in time")
    return trace


def _losses(plain: Trace, mended: Trace, what_ifs: tuple[WhatIf, ...]) -> Losses:
    """Compared step by step; for batches of other pictures, by their mean alone."""
    found = compare_losses(plain.losses, mended.losses, what_ifs, [])
    if found != "not comparable":
        return found
    if not all(math.isfinite(loss) for loss in mended.losses):
        return "other"
    pairs = list(zip(plain.losses, mended.losses, strict=False))
    if not pairs:
        return found
    before, after = (statistics.mean(values) for values in zip(*pairs, strict=True))
    return "alike" if abs(before - after) <= _ALIKE * abs(before) else found
