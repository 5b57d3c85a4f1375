"""The messages between processes: how to run a script, and what was observed of its training."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from onsight_explain.tracing.device_time import effective_phases
from onsight_explain.tracing.sites import Site
from onsight_explain.tracing.window import Epoch

Ended = Literal["window", "script", "limit", "slow"]
Plain = bool | int | str | tuple[int, ...]  # values that JSON preserves


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """One run of a script: what to run, for how long, and with which changes."""

    script: Path
    args: list[str]
    seconds: float = 0.0  # limit of the measurement
    steps: int  # limit of the measurement
    limit_seconds: float  # limit of the whole run, from its start
    out: Path  # where to write the trace
    first_limit_seconds: float = 0.0  # limit of the first window; 0: limit_seconds
    changes: dict[str, Plain] = field(default_factory=dict)  # values of what-ifs, by name
    is_full: bool = False  # also examine the dataset and count the work of a step
    rate: float = 0.0  # images/s of the unchanged script; a run far below ends early (0: never)
    epoch: Epoch | None = None  # if set, measure whole epochs
    timeline: Path | None = None  # file to write a timeline to, if any
    training: Site | None = None  # where the unchanged script creates its training loader


@dataclass(frozen=True, kw_only=True)
class LoaderFacts:
    """A DataLoader as the script creates it."""

    site: Site | None
    maker: str = ""  # the package that creates it, called from the site; "" if the script does
    batch_size: int | None
    workers: int
    is_pinned: bool
    is_persistent: bool
    is_shuffled: bool
    items: int | None
    has_items: bool = True  # whether items are read by index, so that they can be replaced
    most_workers: int | None = None  # more cannot share the work
    is_collated: bool = True


@dataclass(frozen=True)
class MovedSteps:
    """A Compose split into transforms of the stored items and transforms of batches."""

    kept: list[int]  # indices of the transforms of the stored items
    conversions: list[str]  # code of the conversions after these transforms
    changes: list[str]  # code that transforms `images`, a batch of stored items


@dataclass(frozen=True)
class ItemFacts:
    """The cost of reading one item of the dataset, measured in one process."""

    seconds: float
    waiting_share: float  # fraction of its time without using the CPU
    transform_share: float  # fraction of its time in the dataset's `transform`
    is_random: bool
    item_bytes: int
    transforms: list[str] = field(default_factory=list)  # names of those in its Compose
    moved: MovedSteps | None = None  # how to move the random transforms to batches
    stacks: bool = False  # whether `default_collate` turns the items into one list of tensors
    jpeg_side: int = 0  # the shorter side of its JPEG files
    resized_side: int = 0  # images' side after a first transform that resizes them


@dataclass(frozen=True)
class OptimizerFacts:
    """The optimizer as the script creates it."""

    name: str
    site: Site | None
    is_fused: bool


@dataclass(frozen=True)
class ThreadSetting:
    """A variable of OpenMP, or a binding to cores."""

    name: str
    value: str
    site: Site | None  # in the script; None: in its environment


@dataclass(frozen=True)
class Reads:
    """Values that Python waited for at one call stack."""

    sites: list[Site]  # the user's lines, innermost first
    per_step: float


@dataclass
class Trace:
    """What was observed of a script's training, filled in by the process that runs it.

    The measured interval is `seconds` long, and the phases add up to it.
    """

    ended: Ended  # slow: far below the unchanged script
    startup_seconds: float
    script: str = ""
    seconds: float = 0.0
    steps: int = 0
    images: int = 0  # trained on
    evaluated: int = 0  # images evaluated
    epochs: int = 0  # whole epochs in the window; 0 if it is shorter
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
    trainer: str = ""  # the package whose training loop runs; "" for the script's
    trainer_site: Site | None = None  # where the script calls the trainer
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
    remarks: list[str] = field(default_factory=list)  # what could not be tried or observed
    last_output: str = ""  # end of the output of a script that did not train

    @property
    def images_per_second(self) -> float:
        """Images per second; the time includes evaluation between the epochs."""
        return self.images / self.seconds if self.seconds else 0.0

    def share(self, *phases: str) -> float:
        """Return the phases' share of the time; on an accelerator, of the device's time."""
        effective = effective_phases(self.phases, self.device_phases)
        return sum(effective.get(phase, 0.0) for phase in phases) / (self.seconds or 1.0)


@dataclass(frozen=True)
class SimulationRequest:
    """One run of a script on the simulated GPU."""

    script: Path
    args: list[str]
    steps: int  # number of steps after the warm-up
    limit_seconds: float
    out: Path  # where to write the trace


@dataclass(frozen=True)
class Waits:
    """The host's waits at one line with one cause."""

    site: Site | None
    cause: str
    per_step: float


@dataclass(frozen=True)
class DeviceFailure:
    """The exception that a script would raise on a GPU, and the user's line."""

    site: Site | None
    kind: str
    message: str


@dataclass(frozen=True)
class SimulationTrace:
    """What was observed of a script's training on the simulated GPU."""

    ended: Literal["steps", "script", "limit", "error"]
    steps: int = 0
    launches_before: int = 0  # launches before the measured steps
    launches_per_step: float = 0.0
    waits: list[Waits] = field(default_factory=list)
    # Uses of memory that a GPU may have reused or not yet filled.
    faults: list[str] = field(default_factory=list)
    failure: DeviceFailure | None = None
