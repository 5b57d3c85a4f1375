"""The folder of a sweep: what it tries, in sweep.json, and a run folder for each combination."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onsight.errors import ConfigError, OutputError
from onsight.files import disk_errors, write_json
from onsight.report.runfiles import read_json
from onsight.sweeper.space import Settings
from onsight.training.run_folder.folder import CONFIG, lock_folder

_PLAN = "sweep.json"
_LOCK = ".lock"
_NAME_LENGTH = 80


@dataclass(frozen=True)
class PlannedRun:
    """One of a sweep's runs: its folder, what it tries, and all fields that it is given."""

    path: Path
    settings: Settings
    fields: Settings

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def is_finished(self) -> bool:
        """Whether everything was written, the report last."""
        results = read_json(self.path / "results.json")
        return bool(results and results["report"])

    @property
    def is_begun(self) -> bool:
        """Whether it can be resumed."""
        return (self.path / CONFIG).exists()


def plan_runs(folder: Path, tried: Sequence[Settings], fields: Settings) -> list[PlannedRun]:
    """The runs of a sweep, numbered so that equal names never meet."""
    digits = len(str(len(tried)))
    return [
        PlannedRun(folder / f"{number:0{digits}d}-{_slug(settings)}", settings, fields | settings)
        for number, settings in enumerate(tried, 1)
    ]


@contextmanager
def claimed(folder: Path, plan: dict[str, Any], resume: bool) -> Iterator[None]:
    """Make or reopen a sweep's folder, for this process alone, and keep there what it tries.

    plan: plain values; a sweep resumes only with the same. Raises OutputError, ConfigError.
    """
    if resume:
        _check_same(folder, plan)
    elif folder.exists() and (not folder.is_dir() or {*_names(folder)} - {_LOCK}):
        raise OutputError(
            f"{folder} is in use: it already holds files. "
            "Choose another --out, or continue that sweep with --resume"
        )
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    descriptor = lock_folder(folder)
    try:
        if not resume:
            write_json(folder / _PLAN, plan)
        yield
    finally:
        os.close(descriptor)


def next_sweep_folder(data: str) -> Path:
    """sweeps/<name of the data>, with a number appended if that is taken."""
    name = Path(data).resolve().name.partition(".")[0] or "sweep"
    number = 1
    while (path := Path("sweeps") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path


def _check_same(folder: Path, plan: dict[str, Any]) -> None:
    kept = read_json(folder / _PLAN)
    if kept is None:
        raise OutputError(f"nothing to resume: {folder} is not the folder of a sweep")
    changed = sorted(name for name in plan if plan[name] != kept[name])
    if changed:
        raise ConfigError(
            f"a resumed sweep keeps its settings, but {', '.join(changed)} would change "
            f"(see {folder / _PLAN}); leave that as it was, or start a new sweep"
        )


def _names(folder: Path) -> Iterator[str]:
    return (item.name for item in folder.iterdir())


def _slug(settings: Settings) -> str:
    """Settings as a file name on any system: `model=lenet,learning_rate=0.001`."""
    text = ",".join(f"{name}={value}" for name, value in settings.items())
    return re.sub(r"[^A-Za-z0-9._,=-]+", "-", text)[:_NAME_LENGTH].rstrip(".-")
