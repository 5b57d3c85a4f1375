"""The runs of a sweep as trials of Ray Tune, on a cluster that sees the sweep's folder.

Each trial starts its run as `local` does, in a process of its own; a trial whose machine is lost
is started again, and then continues from the run's last checkpoint.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any

from onsight.errors import ConfigError, Interrupted, OnsightError
from onsight.report.console import Reporter
from onsight.sweeper.folder import PlannedRun
from onsight.sweeper.one_run import run_one
from onsight.sweeper.space import Settings
from onsight.version import installed_as

_LOST_MACHINES = 3  # a trial's machines that may be lost before it counts as failed
_RUN = "run"
_TUNE = "ray-tune"  # Tune's own files, in the sweep's folder


def run_on(cluster: str) -> Callable[[Sequence[PlannedRun], str, Reporter], dict[str, str]]:
    """What trains runs on this cluster: auto, ray://HOST:PORT, HOST:PORT. Raises ConfigError."""
    _check(cluster)

    def run_all(runs: Sequence[PlannedRun], data: str, reporter: Reporter) -> dict[str, str]:
        import ray

        with redirect_stdout(sys.stderr):  # stdout is for the result alone
            _connect(cluster)
            try:
                return _tune(runs, data, reporter)
            finally:
                ray.shutdown()

    return run_all


def _check(cluster: str) -> None:
    if cluster != "auto" and not re.fullmatch(r"(ray://)?[^\s/]+:\d+", cluster):
        raise ConfigError(
            f"--cluster {cluster} is not an address: give auto, ray://HOST:PORT or HOST:PORT"
        )
    try:
        import ray.tune  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"--cluster needs {error.name}: pip install '{installed_as()}[cluster]'"
        ) from error


def _connect(cluster: str) -> None:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers
    try:
        ray.init(address=cluster, log_to_driver=True, logging_level="warning")
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        raise ConfigError(
            f"--cluster {cluster}: no Ray cluster answers there ({error}). Start one with "
            "`ray start --head`, see that its token is yours, or leave out --cluster"
        ) from error


def _tune(runs: Sequence[PlannedRun], data: str, reporter: Reporter) -> dict[str, str]:
    """Why each run failed, if it did."""
    from ray import tune

    errors = {run.name: "" for run in runs}
    left = [run for run in runs if not run.is_finished]
    if not left:
        return errors
    share = _share()
    reporter.say(
        f"{len(left)} of {len(runs)} runs are left, for Ray Tune: each takes "
        f"{share['cpu']:g} cores and {share['gpu']:g} GPUs"
    )
    trial = tune.with_parameters(_trial, runs=left, data=data, threads=int(share["cpu"]))
    tuner = tune.Tuner(
        tune.with_resources(trial, share),
        param_space={_RUN: tune.grid_search([run.name for run in left])},
        run_config=tune.RunConfig(
            name=_TUNE,
            storage_path=str(left[0].path.parent),
            failure_config=tune.FailureConfig(max_failures=_LOST_MACHINES),
            verbose=0,
        ),
    )
    for result in tuner.fit():
        name = (result.config or {})[_RUN]
        said = result.metrics or {}
        errors[name] = f"its machine was lost: {result.error}" if result.error else said["error"]
    return errors


def _trial(config: Settings, runs: Sequence[PlannedRun], data: str, threads: int) -> dict[str, Any]:
    """One trial: what Ray Tune calls on a machine of the cluster."""
    run = next(one for one in runs if one.name == config[_RUN])
    if not run.path.parent.is_dir():
        return {"error": f"{run.path.parent} is not visible there: give --out on a shared disk"}
    run.fields.setdefault("threads", threads)  # a machine may have several trials
    try:
        return {"error": run_one(run, data)}
    except Interrupted:
        raise  # the cluster stops this trial: it is to continue elsewhere
    except OnsightError as error:
        return {"error": str(error)}


def _share() -> dict[str, float]:
    """What a run takes of the cluster: a GPU and its share of cores, or a machine's cores."""
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    with_gpus = [one for one in machines if one.get("GPU", 0) >= 1]
    if with_gpus:
        return {"cpu": max(1, min(one["CPU"] // one["GPU"] for one in with_gpus)), "gpu": 1}
    with_cores = [one["CPU"] for one in machines if one.get("CPU", 0) >= 1]  # a head may lend none
    return {"cpu": min(with_cores, default=1), "gpu": 0}
