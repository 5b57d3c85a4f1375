"""The messages between two processes: which script to run on the twin, and what was seen."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from onsight_explain.tracing.sites import Site


@dataclass(frozen=True)
class Request:
    """What to run, for how many steps after the warm-up, and where to write the trace."""

    script: Path
    args: list[str]
    steps: int
    limit_seconds: float
    out: Path


@dataclass(frozen=True)
class Waits:
    """Waits of the host at one line, for one reason."""

    site: Site | None
    cause: str
    per_step: float


@dataclass(frozen=True)
class Failure:
    """Why a script ended early, and its own line."""

    site: Site | None
    kind: str
    message: str


@dataclass(frozen=True)
class TwinTrace:
    """What was seen of a script's training on the twin.

    launches_before: those until the measured steps began; faults: uses of memory that a GPU may
    have given away or not yet filled.
    """

    ended: Literal["steps", "script", "limit", "error"]
    steps: int = 0
    launches_before: int = 0
    launches_per_step: float = 0.0
    waits: list[Waits] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    failure: Failure | None = None
