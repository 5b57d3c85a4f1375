"""What is asked of a script's run, and what was seen of it, as two processes tell each other."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from onsight.explain.tracing.sites import Site

Plain = bool | int | str | tuple[int, ...]  # what JSON carries unharmed


class Request(BaseModel):
    """One run of a script: what to run, for how long, with what changed, and where to tell it.

    seconds, steps: the most that is measured; limit_seconds: for all, start included; changes:
    what-ifs by name, with their values; is_full: look at the data set and count the step's work
    too.
    """

    script: Path
    args: list[str]
    seconds: float
    steps: int
    limit_seconds: float
    out: Path
    changes: dict[str, Plain] = {}
    is_full: bool = True


class LoaderFacts(BaseModel):
    """A DataLoader as the script made it."""

    site: Site | None
    batch_size: int | None
    workers: int
    is_pinned: bool
    is_persistent: bool
    is_shuffled: bool
    items: int | None


class ItemFacts(BaseModel):
    """What the data set does for one item, measured in one process.

    waiting_share: of the time, without using the processor; transform_share: of the time, in the
    data set's `transform`.
    """

    seconds: float
    waiting_share: float
    transform_share: float
    is_random: bool
    item_bytes: int


class OptimizerFacts(BaseModel):
    """The optimizer as the script made it."""

    name: str
    site: Site | None
    is_fused: bool


class Reads(BaseModel):
    """Values that Python waited for, from one place: the user's lines, innermost first."""

    sites: list[Site]
    per_step: float


class Trace(BaseModel):
    """What was seen of a script's training.

    seconds: of the measured stretch, to which the phases add up; images: trained on in it;
    evaluated: judged in it; epochs: whole ones, 0 where it is a part of one; ended: by the
    window, the script or the limit.
    """

    ended: Literal["window", "script", "limit"]
    startup_seconds: float
    seconds: float = 0.0
    steps: int = 0
    images: int = 0
    evaluated: int = 0
    epochs: int = 0
    phases: dict[str, float] = {}
    device_phases: dict[str, float] | None = None
    losses: list[float] = []
    loader: LoaderFacts | None = None
    item: ItemFacts | None = None
    optimizer: OptimizerFacts | None = None
    reads: list[Reads] = []
    graphs_kept: int = 0
    graphs_site: Site | None = None
    forward_site: Site | None = None
    pageable_bytes_per_step: int = 0
    batch_size: int = 0
    shape: list[int] = []
    parameters: int = 0
    device: str = "cpu"
    precision: str = "fp32"
    threads: int = 0
    is_channels_last: bool = False
    flops: int = 0
    bytes: int = 0
    placement: str = ""
    misplaced: list[str] = []
    notes: list[str] = []

    @property
    def images_per_second(self) -> float:
        """Images trained on, evaluation between the epochs included in the time."""
        return self.images / self.seconds if self.seconds else 0.0

    def share(self, *phases: str) -> float:
        """Their share of the time."""
        return sum(self.phases.get(one, 0.0) for one in phases) / (self.seconds or 1.0)
