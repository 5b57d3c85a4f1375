"""A mistake found in a script: where, what, why, and the line fixed."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """A mistake that running the script does not show.

    fixed: the corrected source lines, with the user's own names and indentation; a line `...`
    stands for a body that stays as it is.
    """

    file: Path
    line: int
    rule: str
    problem: str
    why: str
    fixed: str
