"""Train every combination of some settings, choose a winner, and compare it with the others."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onsight.config import make_config, refuse_code_from_files
from onsight.config_files import config_layers
from onsight.data.cache import find_cache_folder
from onsight.data.sources.find import DEMO, ReadOptions, find_source
from onsight.errors import ConfigError, OnsightError, OutputError, UserError
from onsight.files import refuse_inside_data, user_path
from onsight.report.compare import compare
from onsight.report.console import Reporter
from onsight.sweeper.plan import (
    PlannedRun,
    Settings,
    Space,
    choose_sweep_folder,
    claim_sweep,
    make_combinations,
    plan_runs,
    read_space,
)
from onsight.sweeper.result import FailedRun, Sweep, choose_winner, read_run
from onsight.sweeper.runs import Errors, run_locally, run_on_ray
from onsight.text import joined, plural


def sweep(
    data: str | Path,
    tries: Sequence[str],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    cluster: str | None = None,
    recipe: str | None = None,
    config_file: str | Path | None = None,
    reporter: Reporter | None = None,
    verbose: bool = False,
    **fields: Any,
) -> Sweep:
    """Train every combination of the values in `tries`, and compare the results.

    The winner is chosen by validation images alone, and compared with the others on test images.

    Args:
        data: Any DATA that `train` accepts.
        tries: Config fields and their values, such as "learning_rate=0.001,0.003".
        out: The folder for the run folders; by default a new one in `sweeps`.
        resume: Continue the sweep in `out`: finished runs are kept.
        cluster: The address of a Ray cluster: `auto`, ray://HOST:PORT or HOST:PORT. By default
            the runs are trained here, one after the other.
        recipe: The name of a recipe with config fields for all runs.
        config_file: A file with config fields for all runs.
        reporter: Where progress is printed.
        verbose: Print every choice and epoch of every run.
        **fields: Config fields for all runs.

    Raises:
        UserError: The arguments are invalid, or every run failed.
        Interrupted: A signal has stopped the sweep; the sweep can be resumed.
    """
    reporter = reporter or Reporter()
    space = read_space(tries)
    common = _merge_common_fields(space, recipe, config_file, fields)
    location = _make_absolute(str(data))
    folder = user_path(out) if out else choose_sweep_folder(str(data))
    refuse_inside_data(folder, str(data), "../sweeps/first")
    folder = folder.absolute()
    planned = plan_runs(folder, make_combinations(space), common)
    runs = [replace(run, is_verbose=verbose) for run in planned]
    for run in runs:
        make_config(run.fields)
    cache_folder = find_cache_folder(common.get("cache_folder", ""))
    files = find_source(location, ReadOptions.from_config(common), cache_folder).fingerprint
    plan = {"data": location, "space": space, "fields": common}
    with claim_sweep(folder, plan, files, resume) as is_unchanged:
        if not is_unchanged:
            reporter.warn(
                f"files in {data} have changed since this sweep began, and runs that had finished "
                "have not seen them; to compare runs on the same images, start a new sweep"
            )
        if cluster is None:
            errors = run_locally(runs, location, reporter)
        else:
            errors = run_on_ray(runs, location, reporter, cluster)
        return _conclude(folder, space, runs, errors)


def _merge_common_fields(
    space: Space, recipe: str | None, config_file: str | Path | None, fields: Settings
) -> Settings:
    """Return the fields passed to all runs. Raises ConfigError."""
    repeated = sorted(set(space) & set(fields))
    if repeated:
        flag = repeated[0].replace("_", "-")
        raise ConfigError(f"--{flag} is also in --try; remove one of them")
    layers = config_layers(recipe, config_file, fields)
    config = make_config(*layers)
    if "model" not in space:
        refuse_code_from_files(config, fields)
    if config.folds not in ("auto", "1"):
        raise ConfigError(
            "a sweep chooses by validation images and evaluates on test images: remove --folds"
        )
    if not (config.validation_fraction and config.test_fraction):
        raise ConfigError(
            "a sweep chooses by validation images and evaluates the choice on test images: "
            "--validation-fraction and --test-fraction must be above 0"
        )
    names = {name for layer in layers for name in layer}
    return {**config.model_dump(include=names - {*space}), "folds": "1"}


def _make_absolute(data: str) -> str:
    """Return DATA, absolute if it is a path, so that other processes can find it."""
    path = user_path(data)
    return str(path.absolute()) if data != DEMO and path.exists() else data


def _conclude(folder: Path, space: Space, runs: Sequence[PlannedRun], errors: Errors) -> Sweep:
    finished = [run for run in runs if not errors[run.name]]
    failed = [
        FailedRun(run.name, run.settings, errors[run.name]) for run in runs if errors[run.name]
    ]
    if not finished:
        raise _make_error(failed)
    swept = [read_run(run) for run in finished]
    winner = choose_winner(swept)
    compared, page = None, None
    notes: tuple[str, ...] = ()
    if len(finished) > 1:
        try:
            compared = compare(*(run.path for run in finished), against=winner.path)
        except OutputError as error:  # they may have held out different images
            notes = (f"the runs are not compared: {error}",)
        else:
            page, notes = compared.save_page(folder), compared.notes
    return Sweep(folder, space, tuple(swept), tuple(failed), winner, compared, page, notes)


def _make_error(failed: Sequence[FailedRun]) -> OnsightError:
    """Return the error for a sweep of which no run finished."""
    reasons = list(dict.fromkeys(run.error for run in failed))
    if len(reasons) == 1:
        return UserError(f"no run of the sweep finished, all for the same reason: {reasons[0]}")
    errors = [f"{run.name}: {run.error}" for run in failed]
    return UserError(
        f"no run of the sweep finished. {plural(len(errors), 'run')} failed: {joined(errors)}"
    )
