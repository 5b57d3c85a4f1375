"""A training job, and the state shared by the command and the processes on the cluster."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from onsight.config import fields_for_resume
from onsight.errors import DataError, OnsightError, OutputError
from onsight.text import plural

_MAX_RANK_FAILURES = 3  # without a new checkpoint; more restarts would probably fail as well
_CHECKPOINT = Path("checkpoints") / "last.safetensors"
_CONFIG = "config.toml"


@dataclass(frozen=True)
class TrainingJob:
    """Arguments of `train` as plain values; all paths are absolute."""

    data: str
    is_path: bool  # data is a path, not the name of a dataset
    out: str
    resume: bool
    spent_seconds: float  # seconds of the time budget used before the job was sent
    fields: dict[str, Any] = field(default_factory=dict)
    is_verbose: bool = False

    def check_visible(self, machine: str) -> None:
        """Raise DataError or OutputError if a path does not exist on this machine."""
        if self.is_path and not os.path.exists(self.data):
            raise DataError(describe_missing_path(self.data, machine))
        if not os.path.isdir(self.out):
            raise OutputError(describe_missing_path(f"the run folder {self.out}", machine))

    @property
    def is_started(self) -> bool:
        """Whether the run folder holds a run to resume."""
        return os.path.exists(os.path.join(self.out, _CONFIG))

    def arguments(self, resume: bool) -> dict[str, Any]:
        """Return the keyword arguments for `train`.

        A run that is resumed after losing a rank keeps its resolved settings. Of the requested
        settings, such as auto, only those that cannot change its result are passed again.
        """
        if not resume or self.resume:
            return dict(self.fields)
        return fields_for_resume(self.fields)

    @property
    def checkpoint_version(self) -> str:
        """A text that changes with the latest checkpoint; empty if there is none."""
        try:
            facts = os.stat(Path(self.out) / _CHECKPOINT)
        except OSError:
            return ""
        return f"{facts.st_mtime_ns} {facts.st_size}"


class JobFailure(NamedTuple):
    """The reason a job must end, and its exit code."""

    message: str  # a traceback if is_bug
    exit_code: int
    is_bug: bool = False


class JobState:
    """An actor on the cluster that outlives the ranks and connects them with the command.

    The ranks add lines for the user, lost ranks and the reason for a failure; the command requests
    a stop. The actor runs no thread and reads no clock.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failure: JobFailure | None = None
        self.signal_number = 0
        self.rank_count = 0
        self.checkpoint = ""
        self.rank_failures: list[str] = []  # lost ranks since the latest checkpoint
        self.processes: dict[int, str] = {}  # rank -> description of its process
        self.nodes: dict[int, str] = {}  # rank -> Ray's id of its machine

    def add_line(self, line: str) -> None:
        """Add a line for the user."""
        self.lines.append(line)

    def take_lines(self) -> list[str]:
        """Return the lines since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def start(self, rank_count: int, checkpoint: str) -> None:
        """Record that ranks start from a checkpoint, or from the beginning if it is empty."""
        if self.rank_count:
            origin = (
                "the last checkpoint" if checkpoint else "the beginning: there was no checkpoint"
            )
            self.add_line(f"continuing with {plural(rank_count, 'rank')} from {origin}")
        self.rank_count = rank_count
        if checkpoint != self.checkpoint:
            self.rank_failures = []
        self.checkpoint = checkpoint

    def register_rank(self, rank: int, process: str, node: str) -> None:
        """Record the process and the machine of a rank."""
        self.processes[rank], self.nodes[rank] = process, node

    def nodes_of(self, ranks: list[int]) -> set[str]:
        """Return Ray's ids of the machines of those ranks that are registered."""
        return {self.nodes[rank] for rank in ranks if rank in self.nodes}

    def record_lost_rank(self, rank: int, reason: str) -> None:
        """Record that a rank was lost; too many without a new checkpoint are a failure."""
        if self.failure:
            return
        process = f" ({self.processes[rank]})" if rank in self.processes else ""
        message = f"rank {rank}{process} was lost: {reason}"
        self.rank_failures.append(message)
        self.add_line(f"note: {message}")
        if len(self.rank_failures) >= _MAX_RANK_FAILURES:
            self.fail(
                f"ranks were lost {len(self.rank_failures)} times without a new checkpoint; "
                f"the last time, {message}",
                1,
            )

    def fail(self, message: str, exit_code: int, is_bug: bool = False) -> None:
        """Record why the job must end; later reasons are ignored."""
        self.failure = self.failure or JobFailure(message, exit_code, is_bug)

    def get_failure(self) -> JobFailure | None:
        """Return why the job must end, or None."""
        return self.failure

    def request_stop(self, signal_number: int) -> None:
        """Request that the ranks stop after a checkpoint, as if they had received this signal."""
        self.signal_number = signal_number

    def get_stop_signal(self) -> int:
        """Return the signal of a requested stop; 0 if there is none."""
        return self.signal_number

    def has_started(self) -> bool:
        """Return whether ranks have ever started."""
        return self.rank_count > 0


class ClusterFailed(OnsightError):
    """A process of the cluster failed; the error repeats its message and exit code."""

    def __init__(self, failure: JobFailure) -> None:
        is_bug, message = failure.is_bug, failure.message
        super().__init__(f"a rank failed:\n{message}" if is_bug else message)
        self.exit_code = failure.exit_code


def raise_failure(failure: JobFailure | None) -> None:
    """Raise ClusterFailed if there is a failure."""
    if failure:
        raise ClusterFailed(failure)


def make_ray_error(error: Exception) -> OnsightError:
    """Return an OnsightError with the last line of Ray's message, which contains the reason."""
    lines = str(error).strip().splitlines()
    return OnsightError(f"Ray ended the work: {lines[-1] if lines else type(error).__name__}")


def describe_missing_path(path: str, machine: str) -> str:
    """Return the message for a path that does not exist on a machine of the cluster."""
    return (
        f"{path} does not exist on {machine}; put it on storage mounted at the same path on every "
        "machine of the cluster"
    )
