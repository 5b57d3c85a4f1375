"""Compare a fixed script with the original, and write it if it runs and trains as before."""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onsight_explain.console import StderrMessages
from onsight_explain.delivery.fixed_script import (
    MARK,
    FixedScript,
    fix_script,
    fixes_for,
    list_cautions,
)
from onsight_explain.errors import ExplainError
from onsight_explain.files import check_output, write_atomically
from onsight_explain.paired_timing import MIN_CLEAR_GAIN, PairedRounds, RatioInterval
from onsight_explain.process.bench import ScriptBench, ScriptTrial, compare_losses
from onsight_explain.script.trace import Trace
from onsight_explain.search import Losses, TrialFailed
from onsight_explain.what_ifs.fixed_script import RunFixedScript
from onsight_explain.what_ifs.what_if import WhatIf

_MAX_SECONDS = 8.0  # limit for the rounds after the first
_ALIKE = 0.1  # relative difference of the mean first losses, where batches hold other images


@dataclass(frozen=True)
class FixProof:
    """The result of running a fixed script against the original."""

    rounds: PairedRounds = field(default_factory=PairedRounds)
    losses: Losses = "not comparable"
    problem: str = ""  # why there are no rounds, or ""
    min_gain: float = MIN_CLEAR_GAIN  # smallest speed-up that can be told from noise
    # From the start to the first step, of the original and of the fixed script.
    setup_seconds: tuple[float, float] | None = None  # None if there are no rounds

    @property
    def interval(self) -> RatioInterval:
        """The speed-up with its 95% interval."""
        return replace(self.rounds.interval, min_gain=self.min_gain)

    @property
    def is_sound(self) -> bool:
        """Whether the fixed script ran, not slower, and its training matched the original's."""
        return not self.problem and self.losses != "other" and self.interval.high >= 1


@dataclass(frozen=True)
class Delivery:
    """A fixed script and the file for it, which is written only if the script is sound."""

    target: Path
    fixed: FixedScript
    proof: FixProof | None  # None if no fix changes the text

    @property
    def is_sound(self) -> bool:
        """Whether the fixed script may be used."""
        return self.proof is None or self.proof.is_sound

    def facts(self) -> dict[str, Any]:
        """Return plain values: rates in images/s, one for each round; the ratio's interval."""
        facts: dict[str, Any] = {
            "file": str(self.target) if self.is_sound else None,
            "diff": self.fixed.diff(self.target.name),
            "to_do": [f"{line.site}: {line.text}" for line in self.fixed.lines if line.left],
        }
        if self.proof:
            rounds = self.proof.rounds
            facts |= {
                "images_per_second": {"before": rounds.baseline, "after": rounds.changed},
                "ratio": rounds.interval.facts() if rounds.changed else None,
                "setup_seconds": self.proof.setup_seconds,
                "losses": self.proof.losses,
                "problem": self.proof.problem or None,
            }
        return facts


def check_target(script: Path, target: Path) -> Path:
    """Return the path to write to.

    Raises ExplainError if that would replace anything but a file that we have written.
    """
    path = check_output(target, "--write", [script])
    if path.exists() and MARK not in _first_lines(path):
        raise ExplainError(
            f"{target} exists and was not written by Onsight: delete it, or name another file"
        )
    return path


def deliver(
    script: Path,
    trace: Trace,
    what_ifs: Sequence[WhatIf],
    target: Path,
    bench: ScriptBench,
    plain: ScriptTrial,
    window_seconds: float,
    min_gain: float = MIN_CLEAR_GAIN,
) -> Delivery:
    """Make the what-ifs in a script's text, run it against the original, write it if it is sound.

    The target has been checked before, and `plain` is a trial of the original that already runs.
    Raises DiskError.
    """
    cautions = list_cautions(what_ifs, trace)
    fixed, proof = fix_script(script, fixes_for(what_ifs, trace), cautions), None
    if fixed.is_changed or fixed.outside:
        bench.until = math.inf  # the search is over: the set-up may take as long as the user allows
        StderrMessages().say(
            f"running {target.name} and {script.name} alternately, after waiting at most "
            f"{bench.first_limit(window_seconds):.0f} s for the first step of {target.name}"
        )
        proof = replace(prove(fixed, what_ifs, bench, plain, window_seconds), min_gain=min_gain)
    delivery = Delivery(target, fixed, proof)
    if delivery.is_sound:
        write_atomically(target, fixed.after)
    return delivery


def prove(
    fixed: FixedScript,
    what_ifs: Sequence[WhatIf],
    bench: ScriptBench,
    plain: ScriptTrial,
    window_seconds: float,
) -> FixProof:
    """Run a script with these what-ifs in its text and the original alternately."""
    with tempfile.TemporaryDirectory(prefix="onsight-fixed-") as folder:
        path = Path(folder) / fixed.script.name
        path.write_bytes(fixed.after)
        outside = [what_if for what_if in what_ifs if what_if.environment]
        trial = bench.open((RunFixedScript(str(path)), *outside))

        def measure(run: ScriptTrial, problem: str) -> float:
            try:
                return run.measure(window_seconds)
            except TrialFailed as error:
                raise TrialFailed(f"{problem}: {error}") from None

        try:
            rounds = _measure_rounds(
                lambda: measure(plain, f"{fixed.script.name} could not be measured again"),
                lambda: measure(trial, "the fixed script failed"),
            )
        except TrialFailed as failure:
            return FixProof(problem=str(failure))
        finally:
            trial.close()
    assert trial.first
    losses = _compare_losses(bench.losses, trial.first.losses, tuple(what_ifs))
    setup_seconds = bench.startup_seconds, trial.first.startup_seconds
    return FixProof(rounds, losses, setup_seconds=setup_seconds)


def _measure_rounds(plain: Callable[[], float], fixed: Callable[[], float]) -> PairedRounds:
    """Measure the minimum number of rounds, and more while their ratios vary widely."""
    rounds = PairedRounds()
    rounds.measure(plain, fixed)
    began = time.monotonic()  # after the set-up, which is part of the first round
    while not rounds.are_enough(time.monotonic() - began > _MAX_SECONDS):
        rounds.measure(plain, fixed)
    return rounds


def _compare_losses(plain: list[float], fixed: list[float], what_ifs: tuple[WhatIf, ...]) -> Losses:
    """Compare losses step by step; for batches of other images, only their means."""
    losses = compare_losses(plain, fixed, what_ifs, [])
    pairs = list(zip(plain, fixed, strict=False))
    if losses != "not comparable" or not pairs:
        return losses
    before, after = (statistics.mean(values) for values in zip(*pairs, strict=True))
    return "alike" if abs(before - after) <= _ALIKE * abs(before) else losses


def _first_lines(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(1000).decode("utf-8", "replace")
