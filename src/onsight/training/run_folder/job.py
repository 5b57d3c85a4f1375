"""Which run the job of torchrun has begun: when its ranks are started again, they go on with it."""

import os
from pathlib import Path

from onsight.errors import ConfigError
from onsight.files import write_atomically
from onsight.ranks.watchdog import LAUNCHED
from onsight.training.run_folder.folder import CONFIG, JOB


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
    restarts = 0 if LAUNCHED in os.environ else os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
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
    return "" if name == "none" or LAUNCHED in os.environ else name
