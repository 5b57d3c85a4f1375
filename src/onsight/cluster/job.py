"""What travels between the command and the processes of a cluster: a training job and its state."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from onsight.config import fields_for_resume
from onsight.errors import DataError, OnsightError, OutputError
from onsight.text import plural

_MAX_LOSSES = 3  # in a row without a new checkpoint: continuing would repeat them for ever
_CHECKPOINT = Path("checkpoints") / "last.safetensors"
_CONFIG = "config.toml"


@dataclass(frozen=True)
class TrainingJob:
    """Arguments of `train` as plain values; all paths are absolute."""

    data: str
    is_path: bool  # data is a path, not a known name
    out: str
    resume: bool
    spent_seconds: float  # of a budget, before the job was sent
    fields: dict[str, Any] = field(default_factory=dict)

    def check_visible(self, machine: str) -> None:
        """Raise DataError or OutputError if the machine that runs this cannot see the paths."""
        if self.is_path and not os.path.exists(self.data):
            raise DataError(invisible(self.data, machine))
        if not os.path.isdir(self.out):
            raise OutputError(invisible(f"the run folder {self.out}", machine))

    @property
    def is_started(self) -> bool:
        """Whether the run folder holds a run to resume."""
        return os.path.exists(os.path.join(self.out, _CONFIG))

    def arguments(self, resume: bool) -> dict[str, Any]:
        """Return the keyword arguments for `train`.

        A run that is resumed after a loss keeps its resolved settings. The requested ones, such
        as auto, may not be given again, except for those that cannot change its result.
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
    """Why a job ends."""

    message: str  # a traceback if is_bug
    exit_code: int
    is_bug: bool = False


class JobState:
    """An actor on the cluster that outlives the ranks and connects them with the command.

    The ranks add lines, losses and the reason of a failure; the command requests a stop. It has no
    thread and no clock of its own.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failure: JobFailure | None = None
        self.signal_number = 0
        self.rank_count = 0
        self.checkpoint = ""
        self.losses: list[str] = []
        self.processes: dict[int, str] = {}  # of each rank, in words
        self.nodes: dict[int, str] = {}  # Ray's id of each rank's machine

    def add_line(self, line: str) -> None:
        """Add a line for the user."""
        self.lines.append(line)

    def take_lines(self) -> list[str]:
        """Return the lines since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def start(self, rank_count: int, checkpoint: str) -> None:
        """Record that ranks start from a checkpoint; an empty text is the beginning."""
        if self.rank_count:
            origin = (
                "the last checkpoint" if checkpoint else "the beginning: there was no checkpoint"
            )
            self.add_line(f"continuing with {plural(rank_count, 'rank')} from {origin}")
        self.rank_count = rank_count
        if checkpoint != self.checkpoint:
            self.losses = []
        self.checkpoint = checkpoint

    def register_rank(self, rank: int, process: str, node: str) -> None:
        """Record the process and the machine of a rank."""
        self.processes[rank], self.nodes[rank] = process, node

    def nodes_of(self, ranks: list[int]) -> set[str]:
        """Return Ray's ids of the machines of these ranks, as far as known."""
        return {self.nodes[rank] for rank in ranks if rank in self.nodes}

    def record_loss(self, rank: int, reason: str) -> None:
        """Record that a rank was lost; too many losses without progress are a failure."""
        if self.failure:
            return
        process = f" ({self.processes[rank]})" if rank in self.processes else ""
        loss = f"rank {rank}{process} was lost: {reason}"
        self.losses.append(loss)
        self.add_line(f"note: {loss}")
        if len(self.losses) >= _MAX_LOSSES:
            self.fail(
                f"the run was lost {len(self.losses)} times without a new checkpoint, last because "
                f"{loss}",
                1,
            )

    def fail(self, message: str, exit_code: int, is_bug: bool = False) -> None:
        """Record that the job must end; the first reason counts."""
        self.failure = self.failure or JobFailure(message, exit_code, is_bug)

    def get_failure(self) -> JobFailure | None:
        """Return why the job must end, if it must."""
        return self.failure

    def request_stop(self, signal_number: int) -> None:
        """Ask the ranks to stop after a checkpoint, as for this signal."""
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


def ray_failed(error: Exception) -> OnsightError:
    """Return our error for one of Ray's, with its last line, which has the reason."""
    lines = str(error).strip().splitlines()
    return OnsightError(f"Ray ended the work: {lines[-1] if lines else type(error).__name__}")


def invisible(path: str, machine: str) -> str:
    """Return the message for a path that does not exist on a machine of the cluster."""
    return (
        f"the machine {machine} cannot find {path}: put it on storage that every machine of the "
        "cluster mounts under the same path"
    )
