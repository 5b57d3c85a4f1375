"""What the ranks of a run tell the command that started it, and it tells them."""

from typing import NamedTuple

from onsight.errors import OnsightError
from onsight.words import plural

_MOST_LOSSES = 3  # in a row without a new checkpoint: going on would repeat them for ever


class Failure(NamedTuple):
    """Why a run ends; is_bug: the message is a traceback."""

    message: str
    exit_code: int
    is_bug: bool = False


class ClusterFailed(OnsightError):
    """A process of the cluster ended with an error message, which this error repeats."""

    def __init__(self, failure: Failure) -> None:
        words = f"a rank failed:\n{failure.message}" if failure.is_bug else failure.message
        super().__init__(words)
        self.exit_code = failure.exit_code


def raise_failure(failure: Failure | None) -> None:
    """Raise ClusterFailed if there is a failure."""
    if failure:
        raise ClusterFailed(failure)


def ended_by_ray(error: Exception) -> OnsightError:
    """The error for what Ray itself gave up; its last line says most."""
    lines = str(error).strip().splitlines()
    return OnsightError(f"Ray ended the work: {lines[-1] if lines else type(error).__name__}")


class Notes:
    """An actor on the cluster that outlives the ranks; has no thread and no clock of its own."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failure: Failure | None = None
        self.signal_number = 0
        self.size = 0
        self.checkpoint = ""
        self.losses: list[str] = []
        self.places: dict[int, str] = {}
        self.nodes: dict[int, str] = {}

    def say(self, line: str) -> None:
        """A line for the user."""
        self.lines.append(line)

    def take_lines(self) -> list[str]:
        """The lines since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def begin(self, size: int, checkpoint: str) -> None:
        """So many ranks begin; checkpoint: what tells the latest one from others, if any."""
        if self.size:
            place = (
                "the last checkpoint" if checkpoint else "the beginning: there was no checkpoint"
            )
            self.say(f"going on with {plural(size, 'rank')} from {place}")
        self.size = size
        if checkpoint != self.checkpoint:
            self.losses = []
        self.checkpoint = checkpoint

    def enter(self, rank: int, place: str, node: str) -> None:
        """A rank has this process and machine; node: Ray's name of the machine."""
        self.places[rank], self.nodes[rank] = place, node

    def nodes_of(self, ranks: list[int]) -> set[str]:
        """Ray's names of the machines of these ranks, as far as known."""
        return {self.nodes[rank] for rank in ranks if rank in self.nodes}

    def lose(self, rank: int, why: str) -> None:
        """A rank was lost; after too many losses without progress, the run fails."""
        if self.failure:
            return
        place = f" ({self.places[rank]})" if rank in self.places else ""
        reason = f"rank {rank}{place} was lost: {why}"
        self.losses.append(reason)
        self.say(f"note: {reason}")
        if len(self.losses) >= _MOST_LOSSES:
            self.fail(
                f"the run was lost {len(self.losses)} times without a new checkpoint, last because "
                f"{reason}",
                1,
            )

    def fail(self, message: str, exit_code: int, is_bug: bool = False) -> None:
        """The run must end; the first to say so gives the reason."""
        self.failure = self.failure or Failure(message, exit_code, is_bug)

    def why_failed(self) -> Failure | None:
        """The reason, if the run must end."""
        return self.failure

    def ask_to_stop(self, signal_number: int) -> None:
        """The user wants the run to stop after a checkpoint."""
        self.signal_number = signal_number

    def stop_signal(self) -> int:
        """The signal by which the user asked for it; 0 if not."""
        return self.signal_number

    def has_begun(self) -> bool:
        """Whether ranks have ever begun."""
        return self.size > 0
