"""The run folder: the paths in it, and a lock so that only one run writes there."""

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onsight.errors import ConfigError, OutputError
from onsight.files import disk_errors, is_unfinished, remove_unfinished, write_atomically
from onsight.ranks.watchdog import STORE_ENV

_LOCK = ".lock"
_CHECKPOINTS = "checkpoints"
CONFIG = "config.toml"
JOB = ".job"  # of torchrun: its id
_CLAIM = {_LOCK, _CHECKPOINTS, JOB}  # what claiming a folder creates


@dataclass(frozen=True)
class RunFolder:
    """A run folder, claimed by the rank that writes there; the claim ends with the process.

    run: the folder of the whole run, if this is that of one of its folds.
    """

    path: Path
    lock: int | None
    resumed: bool
    run: Path | None = None

    def of_fold(self, fold: int) -> "RunFolder":
        """The folder of a fold's own training; folds are counted from 1."""
        path = self.path / "folds" / str(fold)
        return RunFolder(path, None, resumed=True, run=self.path)

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / _CHECKPOINTS

    def make_checkpoints(self) -> None:
        """Make the folder of the checkpoints."""
        with disk_errors(self.path):
            self.checkpoints.mkdir(parents=True, exist_ok=True)

    @property
    def to_resume(self) -> Path:
        """The path to give to --out in order to resume."""
        return self.run or self.path

    @property
    def evaluation(self) -> Path:
        """The path of a fold's predictions, kept for a run that is resumed."""
        return self.path / "evaluation.safetensors"

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints, which a finished fold no longer needs."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    @property
    def plan(self) -> Path:
        """The path of plan.json, which is written just before training."""
        return self.path / "plan.json"

    @property
    def last_checkpoint(self) -> Path:
        """The path of the latest checkpoint."""
        return self.checkpoints / "last.safetensors"

    @property
    def former_checkpoint(self) -> Path:
        """The path of the checkpoint before the latest, in case that one is damaged."""
        return self.checkpoints / "former.safetensors"

    @property
    def best_weights(self) -> Path:
        """The path of the best weights so far."""
        return self.checkpoints / "best.safetensors"

    @property
    def start_weights(self) -> Path:
        """The path of the weights that fine-tuning began with, a fitted head's."""
        return self.checkpoints / "start.safetensors"

    def epoch_file(self, epoch: int) -> Path:
        """The path of an epoch's model file; epochs are counted from 1."""
        return self.checkpoints / f"epoch-{epoch:02d}.safetensors"

    @property
    def model_file(self) -> Path:
        """The path of the finished model."""
        return self.path / "model.safetensors"

    def release(self) -> None:
        """End the claim, and remove the folder if it holds no result."""
        if self.lock is None:
            return
        os.close(self.lock)
        if self.resumed:  # its config is all that a run killed while decoding has left behind
            return
        with suppress(OSError):
            if {item.name for item in self.path.iterdir()} <= _CLAIM | {CONFIG}:
                self.checkpoints.rmdir()
                (self.path / CONFIG).unlink(missing_ok=True)
                (self.path / JOB).unlink(missing_ok=True)
                (self.path / _LOCK).unlink()
                self.path.rmdir()


def claim_folder(path: Path, resume: bool) -> RunFolder:
    """Make or reopen a run folder and lock it against other runs.

    Raises OutputError if it already holds files and is not to be resumed, if there is nothing
    to resume, or if another run is writing to it.
    """
    with disk_errors(path):  # a name that is too long, a folder of somebody else's
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path} is a file; --out needs a folder")
        if resume and not path.is_dir():
            raise OutputError(f"nothing to resume: {path} does not exist")
        if not resume and path.is_dir() and _holds_files(path):
            raise OutputError(
                f"{path} is in use: it already holds files. "
                "Choose another --out, or continue that run with --resume"
            )
        (path / _CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path, lock_folder(path), resume)
    with disk_errors(path):
        remove_unfinished(path)  # the lock is held: nobody else writes here
    return folder


def _holds_files(path: Path) -> bool:
    """Whether a folder holds more than a claim and what was left half-written."""
    names = {item.name for item in path.iterdir()} - _CLAIM
    names |= {item.name for item in path.glob(f"{_CHECKPOINTS}/*.safetensors")}
    return not all(is_unfinished(name) for name in names)


def share_folder(path: Path) -> RunFolder:
    """A run folder that another rank has claimed. Raises OutputError if it is not visible here."""
    if not path.is_dir():
        raise OutputError(
            f"this machine does not see the run folder {path.absolute()}; "
            "ranks on several machines need an --out on a shared disk"
        )
    return RunFolder(path, None, resumed=True)


def next_run_folder(data: str) -> Path:
    """runs/<name of the data>, with a number appended if that is taken."""
    name = Path(data).resolve().name.partition(".")[0] or "run"
    number = 1
    while True:
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not path.exists():
            return path
        number += 1


def lock_folder(path: Path) -> int:
    """Lock a folder against other processes, until the descriptor returned is closed.

    Raises OutputError if another process has locked it.
    """
    with disk_errors(path / _LOCK):
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        import fcntl  # not on Windows, where nothing enforces the claim
    except ImportError:
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise OutputError(f"{path} is in use by another run; choose another --out") from error
    return descriptor


def has_begun(run: Path) -> bool:
    """Whether a run came so far that its folder says what it is."""
    return os.path.isfile(run / CONFIG)  # unlike Path.exists, also says so of an impossible name


def keep_job(run: Path) -> None:
    """Write the job's id into the run folder, if it has one."""
    if _job_id():
        write_atomically(run / JOB, _job_id().encode())


def run_of_job(path: Path | None) -> Path | None:
    """The run that this job has begun, in its --out or under runs; None if it begins now.

    Raises ConfigError if that cannot be told.
    """
    restarts = 0 if STORE_ENV in os.environ else os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
    again = int(restarts) > 0
    found = [path] if path else [file.parent for file in sorted(Path("runs").glob(f"*/{JOB}"))]
    for run in found:
        if has_begun(run) and (_is_of_job(run) or (again and run == path)):
            return run
    if again and not path and not _job_id():
        raise ConfigError(
            "torchrun has started the ranks again, but which run do they go on with? "
            "Name its folder with --out, or give torchrun an --rdzv-id of your own"
        )
    return None


def _is_of_job(run: Path) -> bool:
    file = run / JOB
    return bool(_job_id()) and file.exists() and file.read_text(encoding="utf-8") == _job_id()


def _job_id() -> str:
    """What torchrun calls this job; empty if it has no name, or Onsight started the ranks."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return "" if name == "none" or STORE_ENV in os.environ else name
