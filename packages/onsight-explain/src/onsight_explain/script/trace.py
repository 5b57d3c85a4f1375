"""The messages between two processes: how to run a script, and what was seen of its training."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from onsight_explain.tracing.devicetime import judged_phases
from onsight_explain.tracing.sites import Site
from onsight_explain.tracing.window import Epoch

Ended = Literal["window", "script", "limit", "slow"]
Plain = bool | int | str | tuple[int, ...]  # what survives JSON unchanged


@dataclass(frozen=True, kw_only=True)
class Request:
    """One run of a script: what to run, for how long, with which changes.

    seconds, steps: to measure, at most; limit_seconds: for the whole run, from its start; out:
    where to write the trace; first_limit_seconds: for its first window, if less is left of the
    limit (0: as much); changes: what-ifs by name, with their values; is_full: also examine
    the data set and count the work of a step; rate: images/s of the script as it is, far below
    which the run ends early (0: never); epoch: measured as a whole, if given; timeline: a file for
    it, if it is wanted; training: where the loader is made that the unchanged script trains from.
    """

    script: Path
    args: list[str]
    seconds: float = 0.0
    steps: int
    limit_seconds: float
    out: Path
    first_limit_seconds: float = 0.0
    changes: dict[str, Plain] = field(default_factory=dict)
    is_full: bool = False
    rate: float = 0.0
    epoch: Epoch | None = None
    timeline: Path | None = None
    training: Site | None = None


@dataclass(frozen=True, kw_only=True)
class LoaderFacts:
    """A DataLoader as the script creates it.

    maker: the package that makes it, called from the site; "" if the script does; has_items:
    whether it has numbered items that can be replaced; most_workers: that can share the work.
    """

    site: Site | None
    maker: str = ""
    batch_size: int | None
    workers: int
    is_pinned: bool
    is_persistent: bool
    is_shuffled: bool
    items: int | None
    has_items: bool = True
    most_workers: int | None = None
    is_collated: bool = True


@dataclass(frozen=True)
class MovedSteps:
    """A Compose taken apart. kept: places of the transforms that make the kept items; conversions:
    code of what follows them there; changes: code of what becomes of `images`, a batch of them."""

    kept: list[int]
    conversions: list[str]
    changes: list[str]


@dataclass(frozen=True)
class ItemFacts:
    """What making one item of the data set costs, measured in one process.

    waiting_share: of the time, spent without using the CPU; transform_share: of the time, spent in
    the data set's `transform`; transforms: names of those in its Compose; moved: how to take the
    random ones out of it; stacks: whether items make one list of tensors; jpeg_side: the shorter
    side of its JPEG files; resized_side: of the images after a first transform that resizes them.
    """

    seconds: float
    waiting_share: float
    transform_share: float
    is_random: bool
    item_bytes: int
    transforms: list[str] = field(default_factory=list)
    moved: MovedSteps | None = None
    stacks: bool = False
    jpeg_side: int = 0
    resized_side: int = 0


@dataclass(frozen=True)
class OptimizerFacts:
    """The optimizer as the script creates it."""

    name: str
    site: Site | None
    is_fused: bool


@dataclass(frozen=True)
class ThreadSetting:
    """A variable of OpenMP, or a binding to cores. site: in the script; None: its environment."""

    name: str
    value: str
    site: Site | None


@dataclass(frozen=True)
class Reads:
    """Values that Python waited for at one place. sites: the user's lines, innermost first."""

    sites: list[Site]
    per_step: float


@dataclass
class Trace:
    """What was seen of a script's training; filled step by step by the process that runs it.

    ended: by what (slow: far below the script as it is); trainer: the package whose training loop
    runs, called from trainer_site, "" for the script's own; seconds: the length of the measured
    stretch, to which the phases add up; images: trained on in it; evaluated: images evaluated in
    it; epochs: whole ones in it, 0 if it is a part of one; remarks: sentences on what could not
    be tried, or was not seen; last_words: of a script that did not train.
    """

    ended: Ended
    startup_seconds: float
    script: str = ""
    seconds: float = 0.0
    steps: int = 0
    images: int = 0
    evaluated: int = 0
    epochs: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    device_phases: dict[str, float] | None = None
    losses: list[float] = field(default_factory=list)
    loader: LoaderFacts | None = None
    evaluation_loader: LoaderFacts | None = None
    item: ItemFacts | None = None
    optimizer: OptimizerFacts | None = None
    reads: list[Reads] = field(default_factory=list)
    graphs_kept: int = 0
    graphs_site: Site | None = None
    forward_site: Site | None = None
    trainer: str = ""
    trainer_site: Site | None = None
    pageable_bytes_per_step: int = 0
    batch_size: int = 0
    shape: list[int] = field(default_factory=list)
    parameters: int = 0
    device: str = "cpu"
    precision: str = "fp32"
    threads: int = 0
    thread_settings: list[ThreadSetting] = field(default_factory=list)
    is_channels_last: bool = False
    has_channels_last_weights: bool = False
    flops: int = 0
    bytes: int = 0
    placement: str = ""
    misplaced: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    last_words: str = ""

    @property
    def images_per_second(self) -> float:
        """Images per second; the time includes evaluation between the epochs."""
        return self.images / self.seconds if self.seconds else 0.0

    def share(self, *phases: str) -> float:
        """Their share of the time; on an accelerator, of its own."""
        judged = judged_phases(self.phases, self.device_phases)
        return sum(judged.get(one, 0.0) for one in phases) / (self.seconds or 1.0)
