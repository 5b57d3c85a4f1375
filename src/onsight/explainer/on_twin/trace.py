"""The messages between two processes: which script to run on the twin, and what was seen."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from onsight.explainer.tracing.sites import Site


class Request(BaseModel):
    """What to run, for how many steps after the warm-up, and where to write the trace."""

    script: Path
    args: list[str]
    steps: int
    limit_seconds: float
    out: Path


class Waits(BaseModel):
    """Waits of the host at one line, for one reason."""

    site: Site | None
    cause: str
    per_step: float


class Failure(BaseModel):
    """Why a script ended early, and its own line."""

    site: Site | None
    kind: str
    message: str


class TwinTrace(BaseModel):
    """What was seen of a script's training on the twin.

    launches_before: those until the measured steps began; faults: uses of memory that a GPU may
    have given away or not yet filled.
    """

    ended: Literal["steps", "script", "limit", "error"]
    steps: int = 0
    launches_before: int = 0
    launches_per_step: float = 0.0
    waits: list[Waits] = []
    faults: list[str] = []
    failure: Failure | None = None
