"""Writes a script's mended text into a file of its own, once it was run and found sound."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onsight.explainer.console import StderrMessages
from onsight.explainer.mend.mended import Mended, mend_script, mends_of
from onsight.explainer.mend.proof import Proof, prove
from onsight.explainer.script.bench import ScriptBench, ScriptTrial
from onsight.explainer.script.trace import Trace
from onsight.explainer.what_ifs.what_if import WhatIf
from onsight.files import write_atomically


@dataclass(frozen=True)
class Delivery:
    """A mended script; proof: None if there was nothing to run; is_written: whether it is kept."""

    target: Path
    mended: Mended
    proof: Proof | None

    @property
    def is_sound(self) -> bool:
        """Whether nothing speaks against using it."""
        return self.proof is None or self.proof.is_sound

    def facts(self) -> dict[str, Any]:
        """Plain values: rates in images/s, one of each round; the ratio's interval."""
        found: dict[str, Any] = {
            "file": str(self.target) if self.is_sound else None,
            "diff": self.mended.diff(self.target.name),
            "left": [f"{one.site}: {one.text}" for one in self.mended.lines if one.left],
        }
        if self.proof:
            rounds = self.proof.rounds
            found |= {
                "images_per_second": {"before": rounds.plain, "after": rounds.changed},
                "ratio": rounds.interval.facts() if rounds.changed else None,
                "losses": self.proof.losses,
                "problem": self.proof.problem or None,
            }
        return found


def deliver(
    script: Path,
    trace: Trace,
    what_ifs: Sequence[WhatIf],
    target: Path,
    bench: ScriptBench,
    plain: ScriptTrial,
    window_seconds: float,
) -> Delivery:
    """Mend a script, run the mended text beside the original, and write it if it is sound.

    what_ifs: those to make in the text; target: checked before; plain: the original, which
    runs already. Raises DiskError.
    """
    mended, proof = mend_script(script, mends_of(what_ifs, trace)), None
    if mended.is_changed or mended.outside:
        StderrMessages().say(f"running {target.name} and {script.name} in turns")
        proof = prove(mended, what_ifs, bench, plain, window_seconds)
    found = Delivery(target, mended, proof)
    if found.is_sound:
        write_atomically(target, mended.after)
    return found
