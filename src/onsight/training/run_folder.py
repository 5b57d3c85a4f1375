"""The run folder: its paths, and the lock that keeps other runs from writing to it."""

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from onsight.errors import ConfigError, OutputError
from onsight.files import (
    disk_errors,
    is_unfinished,
    refuse_links,
    refuse_no_folder,
    remove_unfinished,
    write_atomically,
)
from onsight.ranks.watchdog import STORE_ENV
from onsight.report.run_files import DECISIONS

_LOCK = ".lock"
_CHECKPOINTS = "checkpoints"
CONFIG = "config.toml"
JOB = ".job"  # holds the id of the torchrun job
IMAGES = ".images"  # holds the key of the images that the run began with
_CLAIM = {_LOCK, _CHECKPOINTS, JOB}  # what claiming a folder creates
_BEGUN = {CONFIG, DECISIONS}  # what a run writes before it knows whether it can use the images
_WRITTEN_BEFORE_TRAINING = {
    *_CLAIM, *_BEGUN, IMAGES, "environment.json", "members", "plan.json", "problems.csv",
    "tensorboard",
}  # fmt: skip


@dataclass(frozen=True)
class RunFolder:
    """A run folder, claimed by the rank that writes to it; the claim ends with the process."""

    path: Path
    lock: int | None  # descriptor of the lock; None on ranks that have not claimed the folder
    resumed: bool  # whether the folder holds a run that is resumed
    # Run folder that contains this one, if this is the folder of a member or a fold.
    run: Path | None = None

    def of_part(self, kind: str, name: str) -> "RunFolder":
        """Return the folder of one of the run's trainings, such as folds/1 or members/sprint."""
        return RunFolder(self.path / kind / name, None, resumed=True, run=self.out)

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / _CHECKPOINTS

    def make_checkpoints(self) -> None:
        """Create the folder of the checkpoints."""
        with disk_errors(self.path):
            self.checkpoints.mkdir(parents=True, exist_ok=True)

    @property
    def out(self) -> Path:
        """The value of --out that resumes the run."""
        return self.run or self.path

    @property
    def config(self) -> Path:
        """The path of the settings."""
        return self.path / CONFIG

    @property
    def held_out(self) -> Path:
        """The path of a finished member's predictions and facts."""
        return self.path / "held-out.safetensors"

    @property
    def evaluation(self) -> Path:
        """The path of a fold's predictions, which are reused when the run is resumed."""
        return self.path / "evaluation.safetensors"

    def remove_checkpoints(self) -> None:
        """Remove the folder of the checkpoints."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    @property
    def plan(self) -> Path:
        """The path of plan.json, which is written before training starts."""
        return self.path / "plan.json"

    @property
    def last_checkpoint(self) -> Path:
        """The path of the latest checkpoint."""
        return self.checkpoints / "last.safetensors"

    @property
    def previous_checkpoint(self) -> Path:
        """The path of the checkpoint before the latest, a fallback if that one is damaged."""
        return self.checkpoints / "former.safetensors"

    @property
    def best_weights(self) -> Path:
        """The path of the best weights so far."""
        return self.checkpoints / "best.safetensors"

    @property
    def start_weights(self) -> Path:
        """The path of the weights at the start of fine-tuning, with a fitted head."""
        return self.checkpoints / "start.safetensors"

    def epoch_file(self, epoch: int) -> Path:
        """Return the path of an epoch's model file; epochs are counted from 1."""
        return self.checkpoints / f"epoch-{epoch:02d}.safetensors"

    @property
    def model_file(self) -> Path:
        """The path of the finished model."""
        return self.path / "model.safetensors"

    @property
    def run_model_file(self) -> Path:
        """The path of the model of the run, to which a member or a fold contributes."""
        return self.out / self.model_file.name

    def release(self) -> None:
        """End the claim, and remove a new run's folder if the run has hardly begun."""
        if self.lock is None:
            return
        os.close(self.lock)
        if self.resumed:  # a run killed while decoding has left only its config, but can be resumed
            return
        with suppress(OSError):
            if {item.name for item in self.path.iterdir()} <= _CLAIM | _BEGUN:
                self.checkpoints.rmdir()
                for name in (*_BEGUN, JOB, _LOCK):
                    (self.path / name).unlink(missing_ok=True)
                self.path.rmdir()

    def discard(self) -> None:
        """Remove what a new run has written, if that is all that the folder holds."""
        names = {item.name for item in self.path.iterdir()}
        if not self.resumed and names <= _WRITTEN_BEFORE_TRAINING:
            for name in names - _CLAIM:
                path = self.path / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def claim_folder(path: Path, resume: bool) -> RunFolder:
    """Create or reopen a run folder and lock it against other runs.

    Raises:
        OutputError: A new run's folder already holds files, the folder to resume does not exist,
            contains a link, or another run is writing to it.
    """
    with disk_errors(path):  # such as a name that is too long or a missing permission
        refuse_no_folder(path)
        if resume and not path.is_dir():
            raise OutputError(f"nothing to resume: {path} does not exist")
        if not resume and path.is_dir() and _holds_files(path):
            raise OutputError(
                f"{path} is in use: it already holds files. "
                "Choose another --out, or continue that run with --resume"
            )
        refuse_links(path)
        (path / _CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path, lock_folder(path), resume)
    with disk_errors(path):
        remove_unfinished(path)  # the lock is held: nobody else writes here
    return folder


def _holds_files(path: Path) -> bool:
    """Return whether a folder holds more than a claim and unfinished files."""
    names = {item.name for item in path.iterdir()} - _CLAIM
    names |= {item.name for item in path.glob(f"{_CHECKPOINTS}/*.safetensors")}
    return not all(is_unfinished(name) for name in names)


def share_folder(path: Path) -> RunFolder:
    """Open a run folder that another rank has claimed. Raises OutputError if it does not exist."""
    if not path.is_dir():
        raise OutputError(
            f"this machine does not see the run folder {path.absolute()}; "
            "ranks on several machines need an --out on a shared disk"
        )
    return RunFolder(path, None, resumed=True)


def choose_run_folder(data: str) -> Path:
    """Return the first unused path of runs/NAME, runs/NAME-2 and so on, named after the data."""
    name = Path(data).resolve().name.partition(".")[0] or "run"
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())


def lock_folder(path: Path) -> int:
    """Lock a folder against other processes.

    Returns:
        A descriptor; closing it unlocks the folder.

    Raises:
        OutputError: Another process has locked the folder.
    """
    with disk_errors(path / _LOCK):
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        import fcntl
    except ImportError:  # Windows, where the claim is not enforced
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise OutputError(f"{path} is in use by another run; choose another --out") from error
    return descriptor


def has_config(run: Path) -> bool:
    """Return whether a run has written its config, without which it cannot be resumed."""
    return os.path.isfile(run / CONFIG)  # Path.is_file raises OSError for a name that is too long


def write_job_id(run: Path) -> None:
    """Write the id of the torchrun job, if it has one, into the run folder."""
    if job_id := _read_job_id():
        write_atomically(run / JOB, job_id.encode())


def find_run_of_job(path: Path | None) -> Path | None:
    """Return the folder of the run that this torchrun job has started, or None.

    Args:
        path: The value of --out; None searches the folders in runs.

    Raises:
        ConfigError: torchrun has restarted the ranks, but their run cannot be identified.
    """
    job_id = _read_job_id()
    restarts = 0 if STORE_ENV in os.environ else os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
    is_restarted = int(restarts) > 0
    folders = [path] if path else [file.parent for file in sorted(Path("runs").glob(f"*/{JOB}"))]
    for folder in folders:
        if has_config(folder) and (_has_job_id(folder, job_id) or (is_restarted and path)):
            return folder
    if is_restarted and not path and not job_id:
        raise ConfigError(
            "torchrun has restarted the ranks, but it is unclear which run they belong to. "
            "Name its folder with --out, or set torchrun's --rdzv-id"
        )
    return None


def _has_job_id(run: Path, job_id: str) -> bool:
    file = run / JOB
    return bool(job_id) and file.exists() and file.read_text(encoding="utf-8") == job_id


def _read_job_id() -> str:
    """Return the id of the torchrun job; empty if it has none or Onsight launched the ranks."""
    job_id = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return "" if job_id == "none" or STORE_ENV in os.environ else job_id
