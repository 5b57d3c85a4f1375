"""Where a run happens and how much time is left for it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.config_files import save_config
from onsight.data.shards.remote import strip_file_scheme
from onsight.data.sources.find import name_data, resolve_data
from onsight.data.sources.source import Source
from onsight.deadline import Deadline, read_budget
from onsight.errors import ImagesChanged
from onsight.files import refuse_inside_data, user_path, write_atomically
from onsight.hardware.devices import describe_device
from onsight.hardware.memory import keep_freed_memory
from onsight.hardware.reproducible import KERNELS, reporting_nondeterministic
from onsight.ranks.world import World, join
from onsight.report.console import Reporter, SilentReporter
from onsight.training.decisions import SECONDS, Decisions
from onsight.training.request import Request
from onsight.training.run_folder import (
    IMAGES,
    RunFolder,
    choose_run_folder,
    claim_folder,
    share_folder,
    write_job_id,
)
from onsight.tune.plan import choose_threads
from onsight.untrusted import read_text
from onsight_explain.python_process import runnable_seconds, seconds_since_start

_CLOSING_FRACTION = 1.1  # of the seconds that starting took, apart from waiting for a disk
_MIN_CLOSING_SECONDS = 1.5
_ELAPSED = "elapsed seconds"  # the name of the line with the time used before a training


@dataclass(frozen=True)
class Job:
    """Where work happens and how much time is left for it, but not what is computed."""

    reporter: Reporter
    device: Choice[torch.device]  # where the network is trained, with the reason
    threads: Choice[int]  # of this rank, for decoding and for computing on a CPU, with the reason
    world: World = field(default_factory=World)
    deadline: Deadline = field(default_factory=Deadline)  # when the run must have ended
    # Record of what depended on time or memory.
    decisions: Decisions = field(default_factory=Decisions)
    phases: dict[str, float] = field(default_factory=dict)  # seconds by phase
    is_planned: bool = False  # whether a run that is resumed has already decided how to train
    has_weights: bool = False  # whether a training that is resumed can end with what it has
    is_optional: bool = False  # whether the run has, or will have, a model without this training

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of a block to a phase."""
        begun = time.perf_counter()
        yield
        self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - begun


@dataclass(frozen=True, kw_only=True)
class RunJob(Job):
    """The job of a run with a folder."""

    folder: RunFolder  # run folder, claimed for this run
    resume: bool = False  # whether the run goes on from its last checkpoint
    # Operations without a deterministic kernel, as far as they have run.
    unrepeatable: list[str] = field(default_factory=list)

    def save_config(self, config: Config) -> None:
        """Save the config, from which a run that is killed can be resumed."""
        if self.world.is_main:
            save_config(config, self.folder.config)

    def check_images(self, data_key: str) -> None:
        """Raise DataError if a run that is resumed began with other images."""
        path = self.folder.path / IMAGES
        begun = self.world.broadcast(
            "first images", lambda: read_text(path) if path.exists() else data_key
        )
        if begun != data_key:
            raise ImagesChanged(self.folder.out)
        if self.world.is_main:
            write_atomically(path, data_key.encode())

    def begin_decisions(self, data_key: str) -> None:
        """Repeat the decisions of another run if they were made for the same images."""
        device = self.device.value.type
        differing = self.decisions.begin(
            {"images": data_key, "ranks": self.world.size, "kind of device": device}
        )
        if differing:
            warn_not_repeated(self.reporter, f"the {' and '.join(differing)} differ")
            self.deadline.is_suspended = False
            self.decisions.is_timed = self.deadline.is_set
        elif self.decisions.repeated_run:
            run = self.decisions.repeated_run
            self.reporter.say(f"decisions: repeated from {run}, however long that takes here")
        if self.deadline.is_set:
            earlier_seconds = self.decisions.recall(_ELAPSED, SECONDS)
            self.deadline.count_earlier(earlier_seconds or 0.0)
            if earlier_seconds is None:
                self.decisions.record(_ELAPSED, self.deadline.whole.elapsed())


@contextmanager
def start_job(request: Request) -> Iterator[tuple[RunJob, Source | str]]:
    """Join the other ranks and claim the run folder; yield the job, and DATA as resolved.

    Raises OutputError if the folder is in use, RankLost if ranks are missing.
    """
    config, rank_info = request.config, request.rank_info
    data = resolve_data(request.data)
    default_name = data if isinstance(data, str) else data.kind
    threads = choose_threads(config.threads, rank_info.local_size if rank_info else 1)
    device = Choice(request.devices.value[0], request.devices.reason)
    keep_freed_memory()
    with KERNELS[config.kernels](threads.value):
        world = join(rank_info, device.value, config.cuda_graph == "on", request.store)
        with world.joined():
            path = Path(
                world.broadcast(
                    "folder", lambda: str(request.out or choose_run_folder(default_name))
                )
            )
            refuse_inside_data(path, name_data(data), "../runs/first")
            if config.checkpoints:
                place = user_path(strip_file_scheme(config.checkpoints))
                refuse_inside_data(place, name_data(data), "../copies", "--checkpoints")
            reporter = request.reporter if world.is_main else SilentReporter()
            with (
                reporting_nondeterministic(reporter.warn) as unrepeatable,
                _claimed(path, request.resume, world) as folder,
            ):
                # All settings of a resumed run would look as if the user had made them.
                reporter.shows_choices = not request.resume
                if request.not_repeated:
                    warn_not_repeated(reporter, request.not_repeated)
                deadline = Deadline(
                    read_budget(config.budget), request.elapsed, keeps_running=request.restarted
                )
                reserve_closing(deadline, world)
                decisions = Decisions(folder.path, world, repeated_run=request.repeated_run)
                deadline.is_suspended = decisions.repeated_run is not None
                decisions.is_timed = deadline.is_set
                is_planned = request.resume and folder.plan.exists()
                job = RunJob(
                    reporter=reporter,
                    device=device,
                    threads=threads,
                    world=world,
                    deadline=deadline,
                    decisions=decisions,
                    phases={"start": _starting_seconds(deadline)},
                    folder=folder,
                    resume=request.resume,
                    is_planned=world.broadcast("planned", lambda: str(is_planned)) == "True",
                    unrepeatable=unrepeatable,
                )
                yield job, data


def reserve_closing(deadline: Deadline, world: World) -> None:
    """Set aside time to close the run, as much as starting shows that this machine needs.

    Starting reads far more from the disk than closing does, so waiting for the disk says nothing.
    """
    if deadline.is_set:
        starting_seconds = world.agree(min(_starting_seconds(deadline), runnable_seconds()))
        seconds = max(_MIN_CLOSING_SECONDS, _CLOSING_FRACTION * starting_seconds)
        deadline.reserve("closing", seconds)


def _starting_seconds(deadline: Deadline) -> float:
    """Return the time that starting took, up to now.

    A run that was restarted began before its process, and one in a notebook began after it.
    """
    return min(deadline.elapsed(), seconds_since_start())


def report_device(job: Job) -> None:
    """Report where the work happens."""
    job.reporter.say(f"device: {job.device.value} ({job.device.reason})")
    job.reporter.detail(f"{describe_device(job.device.value)}; torch {torch.__version__}")


def warn_not_repeated(reporter: Reporter, reason: str) -> None:
    """Warn that a run with the settings of another one does not repeat its decisions."""
    reporter.warn(
        f"the decisions of the run that the settings come from are not repeated: {reason}"
    )


@contextmanager
def _claimed(path: Path, resume: bool, world: World) -> Iterator[RunFolder]:
    folder = None
    if world.is_main:
        folder = claim_folder(path, resume)
        write_job_id(path)
    world.wait_for_first_rank("claim")
    folder = folder or share_folder(path)
    try:
        yield folder
    finally:
        folder.release()
