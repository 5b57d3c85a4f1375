"""The combinations that a sweep tries, and its folder: sweep.json and a folder for each run."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from onsight.config import Config, explain_unknown, make_config
from onsight.errors import ConfigError, OutputError
from onsight.files import disk_errors, write_json
from onsight.report.run_files import read_json
from onsight.training.run_folder import CONFIG, lock_folder

Settings = dict[str, Any]  # config field -> value
Space = dict[str, list[Any]]  # config field -> values to try

_PLAN = "sweep.json"
_FILES = "files"  # its key for a digest of the files of the images
_LOCK = ".lock"
_NAME_LENGTH = 80
_CHANGES_SPLIT = {
    "crop_boxes",
    "data_format",
    "folds",
    "group_by",
    "label",
    "label_from",
    "split_near_duplicates",
    "test_fraction",
    "validation_fraction",
}
_DOES_NOT_CHANGE_MODEL = {"cache_folder", "log"}


def read_space(tries: Sequence[str]) -> Space:
    """Read fields and values such as `learning_rate=0.001,0.003`. Raises ConfigError."""
    space: Space = {}
    for text in tries:
        name, values = _read_try(text)
        if name in space:
            raise ConfigError(f"--try {name} is given twice; list all its values in one")
        space[name] = values
    if not space:
        raise ConfigError("nothing to try; name a field and its values: --try model=lenet,compact")
    return space


def make_combinations(space: Space) -> list[Settings]:
    """Return every combination of the values; the values of the last field change fastest."""
    return [dict(zip(space, values, strict=True)) for values in product(*space.values())]


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep, before it is trained or resumed."""

    path: Path
    settings: Settings  # the combination it tries
    fields: Settings  # all config fields passed to it
    is_verbose: bool = False  # whether it prints every choice and epoch

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def is_finished(self) -> bool:
        """Whether all its files were written; the report is the last."""
        results = read_json(self.path / "results.json")
        return isinstance(results, dict) and bool(results["report"])

    @property
    def is_started(self) -> bool:
        """Whether it can be resumed."""
        return (self.path / CONFIG).exists()


def plan_runs(folder: Path, settings: Sequence[Settings], fields: Settings) -> list[PlannedRun]:
    """Return a run for each combination of settings, with unique, numbered names.

    fields: config fields to pass to all runs.
    """
    digits = len(str(len(settings)))
    return [
        PlannedRun(folder / f"{position:0{digits}d}-{_make_slug(tried)}", tried, fields | tried)
        for position, tried in enumerate(settings, 1)
    ]


@contextmanager
def claim_sweep(folder: Path, plan: dict[str, Any], files: str, resume: bool) -> Iterator[bool]:
    """Create or reopen the folder of a sweep, and lock it for this process.

    Yields whether the files of the images are those that the sweep began with.

    Args:
        folder: The folder.
        plan: JSON values to save in it; a sweep can only be resumed with the same plan.
        files: A digest of the files of the images.
        resume: Whether to reopen the folder of a stopped sweep.

    Raises:
        OutputError: The folder is in use, or there is nothing to resume.
        ConfigError: The plan has changed.
    """
    begun_files = files
    if resume:
        saved = _check_same_plan(folder, plan)
        begun_files = saved.get(_FILES, files)
    elif folder.exists() and not (folder.is_dir() and {*os.listdir(folder)} <= {_LOCK}):
        raise OutputError(
            f"{folder} is in use: it already holds files. "
            "Choose another --out, or continue that sweep with --resume"
        )
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    descriptor = lock_folder(folder)
    try:
        if not resume:
            write_json(folder / _PLAN, {**plan, _FILES: files})
        yield begun_files == files
    finally:
        os.close(descriptor)


def choose_sweep_folder(data: str) -> Path:
    """Return sweeps/<name of the data>, with a number appended if that exists."""
    name = Path(data).resolve().name.partition(".")[0] or "sweep"
    number = 1
    while (path := Path("sweeps") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path


def _read_try(text: str) -> tuple[str, list[Any]]:
    name, separator, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    if not separator or not listed.strip():
        raise ConfigError(f"--try {text}: write a field, = and values, as in model=lenet,compact")
    _check_field(name)
    words = [word.strip() for word in listed.split(",")]
    if "" in words:
        raise ConfigError(f"--try {text}: a value before or after a comma is missing")
    values = [getattr(make_config({name: word}), name) for word in words]
    repeated = [word for index, word in enumerate(words) if values[index] in values[:index]]
    if repeated:
        raise ConfigError(f"--try {text}: {repeated[0]} is listed twice")
    return name, values


def _check_field(name: str) -> None:
    if name not in Config.model_fields:
        raise ConfigError(
            f"--try {name}: {explain_unknown(name)} `onsight train --help-all` lists the fields"
        )
    if name in _CHANGES_SPLIT:
        raise ConfigError(
            f"--try {name}: runs are compared on the same held-out images, and this field changes "
            f"which images are held out. Set it once, with --{name.replace('_', '-')}"
        )
    if name in _DOES_NOT_CHANGE_MODEL:
        raise ConfigError(f"--try {name}: this makes no difference to a model")


def _check_same_plan(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Return the saved plan. Raises ConfigError or OutputError."""
    saved = read_json(folder / _PLAN)
    if not isinstance(saved, dict):
        raise OutputError(f"nothing to resume: {folder} is not the folder of a sweep")
    changed = sorted(name for name in plan if plan[name] != saved[name])
    if changed:
        raise ConfigError(
            f"a resumed sweep keeps its settings, but {', '.join(changed)} would change "
            f"(see {folder / _PLAN}); give the same settings, or start a new sweep"
        )
    return saved


def _make_slug(settings: Settings) -> str:
    """Return settings as a file name on any system: `model=lenet,learning_rate=0.001`."""
    text = ",".join(f"{name}={value}" for name, value in settings.items())
    return re.sub(r"[^A-Za-z0-9._,=-]+", "-", text)[:_NAME_LENGTH].rstrip(".-")
