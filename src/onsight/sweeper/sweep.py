"""A sweep: every combination of some settings trained, chosen on validation, judged on test."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onsight.config import config_layers, make_config, without_foreign_code
from onsight.data.sources.find import DEMO
from onsight.errors import ConfigError, OnsightError, UserError
from onsight.files import refuse_inside_data, user_path
from onsight.report.comparison.compare import compare
from onsight.report.console import Reporter
from onsight.sweeper.choose import choose, read_run
from onsight.sweeper.folder import PlannedRun, claimed, next_sweep_folder, plan_runs
from onsight.sweeper.local import run_locally
from onsight.sweeper.result import FailedRun, Sweep
from onsight.sweeper.space import Settings, Space, combinations, read_space
from onsight.words import listed, plural

Errors = dict[str, str]  # why a run failed, by its name; an empty text if it did not
RunAll = Callable[[Sequence[PlannedRun], str, Reporter], Errors]


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
    **fields: Any,
) -> Sweep:
    """Train every combination of the values in tries, such as "learning_rate=0.001,0.003".

    Runs are ordinary run folders in `out`; what has finished there is kept on resume. cluster:
    `auto`, ray://HOST:PORT or HOST:PORT, otherwise they run here, one after the other. fields:
    those of the config, the same for all runs. Raises UserError, and OnsightError
    if no run finished; Interrupted after a signal.
    """
    reporter = reporter or Reporter()
    space = read_space(tries)
    given = _common(space, recipe, config_file, fields)
    place = _absolute(str(data))
    folder = user_path(out) if out else next_sweep_folder(str(data))
    refuse_inside_data(folder, str(data), "../sweeps/first")
    folder = folder.absolute()
    runs = plan_runs(folder, list(combinations(space)), given)
    for run in runs:
        make_config(run.fields)
    with claimed(folder, {"data": place, "space": space, "fields": given}, resume):
        errors = _runner(cluster)(runs, place, reporter)
        return _conclude(folder, space, runs, errors)


def _common(
    space: Space, recipe: str | None, config_file: str | Path | None, fields: Settings
) -> Settings:
    """The fields that all runs are given. Raises ConfigError."""
    twice = sorted(set(space) & set(fields))
    if twice:
        raise ConfigError(f"--{twice[0].replace('_', '-')} is given and tried; leave out one")
    layers = config_layers(recipe, config_file, fields)
    config = make_config(*layers)
    if "model" not in space:
        without_foreign_code(config, fields)
    if config.folds not in ("auto", "1"):
        raise ConfigError("a sweep chooses by validation and judges by test images: leave out "
                          "--folds")  # fmt: skip
    if not (config.validation_fraction and config.test_fraction):
        raise ConfigError(
            "a sweep chooses by validation images and judges the choice by test images: "
            "--validation-fraction and --test-fraction must be above 0"
        )
    given = {name: value for layer in layers for name, value in layer.items()}
    kept = config.model_dump(include={*given} - {*space})
    return {**kept, "folds": "1"}


def _absolute(data: str) -> str:
    """DATA as other processes and machines find it."""
    path = user_path(data)
    return str(path.absolute()) if data != DEMO and path.exists() else data


def _runner(cluster: str | None) -> RunAll:
    if cluster is None:
        return run_locally
    from onsight.sweeper.on_ray import run_on

    return run_on(cluster)


def _conclude(folder: Path, space: Space, runs: Sequence[PlannedRun], errors: Errors) -> Sweep:
    finished = [run for run in runs if not errors[run.name]]
    failed = [
        FailedRun(run.name, run.settings, errors[run.name]) for run in runs if errors[run.name]
    ]
    if not finished:
        raise _none_finished(failed)
    swept = [read_run(run) for run in finished]
    winner = choose(swept)
    compared, page = None, None
    if len(finished) > 1:
        compared = compare(*(run.path for run in finished), against=winner.path)
        page = compared.save_page(folder)
    return Sweep(folder, space, tuple(swept), tuple(failed), winner, compared, page)


def _none_finished(failed: Sequence[FailedRun]) -> OnsightError:
    reasons = list(dict.fromkeys(run.error for run in failed))
    if len(reasons) == 1:
        return UserError(f"no run of the sweep finished, all for the same reason: {reasons[0]}")
    said = [f"{run.name}: {run.error}" for run in failed]
    return UserError(
        f"no run of the sweep finished. {plural(len(said), 'run')} failed: {listed(said)}"
    )
