"""Train the runs of a sweep, one after the other on this machine or with Ray Tune on a cluster.

Each run is a separate process. On a cluster, a trial that is stopped, for example because its
machine is lost, is restarted and continues from the run's last checkpoint.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from typing import Any

from onsight.cluster.session import list_live_nodes, ray_cluster
from onsight.config import fields_for_resume
from onsight.errors import Interrupted, OnsightError, OutputError
from onsight.ranks.signals import handle_stop_signals
from onsight.report.console import Reporter
from onsight.sweeper.plan import PlannedRun, Settings
from onsight.text import resume_hint
from onsight.training.run_folder import lock_folder
from onsight_explain.python_process import child_command

_STALE_SECONDS = 30  # how long to wait for a run left behind by a killed sweep
_STOPPED = {129, 130, 143}  # exit codes after SIGHUP, SIGINT and SIGTERM
_MAX_RESTARTS = 3  # of a trial that was stopped
_RUN = "run"  # the trial parameter that holds the name of the run
_TUNE_FOLDER = "ray-tune"  # for Ray Tune's files, inside the sweep's folder

Errors = dict[str, str]  # error message by run name; empty for a finished run


def run_locally(runs: Sequence[PlannedRun], data: str, reporter: Reporter) -> Errors:
    """Train the unfinished runs, one after the other, and return their errors.

    A run that fails does not stop the others. Raises Interrupted.
    """
    errors = {}
    for position, run in enumerate(runs, 1):
        status = ": already finished" if run.is_finished else ", resumed" if run.is_started else ""
        reporter.say(f"run {position} of {len(runs)}: {run.name}{status}")
        try:
            errors[run.name] = train_run(run, data)
        except Interrupted as stop:
            raise Interrupted(
                f"stopped in {run.name}; its checkpoint and the runs before it are kept: "
                f"{resume_hint(run.path.parent)}",
                stop.exit_code - 128,
            ) from stop
        except OnsightError as error:
            errors[run.name] = str(error)
        if errors[run.name]:
            reporter.warn(f"{run.name} failed: {errors[run.name]}")
    return errors


def run_on_ray(runs: Sequence[PlannedRun], data: str, reporter: Reporter, cluster: str) -> Errors:
    """Train the unfinished runs on a Ray cluster, and return their errors.

    All machines of the cluster must share the folder of the runs. cluster: its address, as for
    ray_cluster. Raises ConfigError if there is no such cluster.
    """
    with (
        redirect_stdout(sys.stderr),  # stdout is for the result alone
        ray_cluster(cluster, "ray.tune", show_logs=True) as ray,
    ):
        return _tune(ray, runs, data, reporter)


def train_run(run: PlannedRun, data: str) -> str:
    """Train a run, from its last checkpoint if it has one.

    Returns:
        The error message; empty if the run finished.

    Raises:
        Interrupted: A signal has stopped the run.
        OutputError: Another process keeps using the run folder.
    """
    if run.is_finished:
        return ""
    _wait_for_stale_process(run)
    answer = _run_child(_make_request(run, data))
    if answer.get("exit_code") in _STOPPED:
        raise Interrupted(answer["error"], answer["exit_code"] - 128)
    return str(answer.get("error", ""))


# ---------------------------------------------------------------------- a run as a process


def _make_request(run: PlannedRun, data: str) -> dict[str, Any]:
    resume = run.is_started
    fields = fields_for_resume(run.fields) if resume else run.fields
    request = {"data": data, "out": str(run.path), "resume": resume}
    return {**request, "fields": fields, "verbose": run.is_verbose}


def _wait_for_stale_process(run: PlannedRun) -> None:
    """Wait until no process of an earlier sweep uses the folder. Raises OutputError."""
    deadline = time.monotonic() + _STALE_SECONDS
    while run.path.is_dir():
        try:
            os.close(lock_folder(run.path))
            return
        except OutputError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _run_child(request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a new `sweeper.child` process and return its answer.

    Signals that arrive meanwhile are forwarded to the process.
    """
    command = child_command("onsight.sweeper.child")
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # otherwise Ctrl-C in a terminal would signal it twice
    ) as child:
        assert child.stdin
        assert child.stdout
        with handle_stop_signals(lambda number, frame: child.send_signal(number)):
            with suppress(BrokenPipeError):  # the process has already ended
                child.stdin.write(json.dumps(request).encode() + b"\n")
            line = child.stdout.readline()
            code = child.wait()
    if not line:
        return {"error": _describe_exit(code), "exit_code": 128 - code if code < 0 else code}
    answer: dict[str, Any] = json.loads(line)
    return answer


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}; its messages are above"
    number = signal.Signals(-code)
    memory = ", perhaps because memory ran out" if number == signal.SIGKILL else ""
    return f"its process was ended by {number.name}{memory}"


# --------------------------------------------------------------------------- on a cluster


def _tune(ray: Any, runs: Sequence[PlannedRun], data: str, reporter: Reporter) -> Errors:
    from ray import tune

    errors = {run.name: "" for run in runs}
    unfinished = [run for run in runs if not run.is_finished]
    if not unfinished:
        return errors
    resources = _compute_resources(ray)
    reporter.say(
        f"{len(unfinished)} of {len(runs)} runs to train with Ray Tune, each with "
        f"{resources['cpu']:g} cores and {resources['gpu']:g} GPUs"
    )
    trial = tune.with_parameters(
        _run_trial, runs=unfinished, data=data, threads=int(resources["cpu"])
    )
    tuner = tune.Tuner(
        tune.with_resources(trial, resources),
        param_space={_RUN: tune.grid_search([run.name for run in unfinished])},
        run_config=tune.RunConfig(
            name=_TUNE_FOLDER,
            storage_path=str(unfinished[0].path.parent),
            failure_config=tune.FailureConfig(max_failures=_MAX_RESTARTS),
            verbose=0,
        ),
    )
    for result in tuner.fit():
        name = (result.config or {})[_RUN]
        if result.error:
            errors[name] = f"its trial failed: {result.error}"
        else:
            errors[name] = (result.metrics or {})["error"]
    return errors


def _run_trial(
    config: Settings, runs: Sequence[PlannedRun], data: str, threads: int
) -> dict[str, Any]:
    """Train the run named in a trial's config; Ray Tune calls this on a machine of the cluster."""
    run = next(run for run in runs if run.name == config[_RUN])
    folder = run.path.parent
    if not folder.is_dir():
        return {"error": f"{folder} is not visible there: give --out on a shared disk"}
    run.fields.setdefault("threads", threads)  # other trials may share the machine
    try:
        return {"error": train_run(run, data)}
    except Interrupted:
        raise  # Ray Tune restarts the trial, perhaps on another machine
    except OnsightError as error:
        return {"error": str(error)}


def _compute_resources(ray: Any) -> dict[str, float]:
    """Return one GPU and its share of the cores; without GPUs, a machine's cores."""
    machines = list_live_nodes(ray)
    with_gpus = [machine for machine in machines if machine.get("GPU", 0) >= 1]
    if with_gpus:
        cores = min(machine.get("CPU", 0) // machine["GPU"] for machine in with_gpus)
        return {"cpu": max(1, cores), "gpu": 1}
    # The head node of a cluster may offer no cores.
    cores = min((node["CPU"] for node in machines if node.get("CPU", 0) >= 1), default=1)
    return {"cpu": cores, "gpu": 0}
