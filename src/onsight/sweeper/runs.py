"""Train the runs of a sweep: here, one after the other, or as trials of Ray Tune on a cluster.

Either way each run is a separate process. A trial whose machine is lost is restarted, and then
continues from the run's last checkpoint.
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

from onsight.cluster.session import live_nodes, ray_cluster
from onsight.errors import Interrupted, OnsightError, OutputError
from onsight.ranks.signals import handling
from onsight.report.console import Reporter
from onsight.sweeper.plan import PlannedRun, Settings
from onsight.training.run_folder import lock_folder
from onsight_explain.python_process import child_command

_STALE_SECONDS = 30  # time for a run to end after its sweep was killed
_STOPPED = {129, 130, 143}  # exit codes after SIGHUP, SIGINT and SIGTERM
_MAX_RESTARTS = 3  # restarts of a trial whose machine was lost
_RUN = "run"  # the parameter of a trial
_TUNE_FOLDER = "ray-tune"  # folder for Tune's files, in the sweep's folder

Errors = dict[str, str]  # why each run failed, by its name; an empty text if it did not


def run_locally(runs: Sequence[PlannedRun], data: str, reporter: Reporter) -> Errors:
    """Train the runs that are not finished, one after the other. Raises Interrupted."""
    errors = {}
    for position, run in enumerate(runs, 1):
        status = ": already finished" if run.is_finished else ", resumed" if run.is_started else ""
        reporter.say(f"run {position} of {len(runs)}: {run.name}{status}")
        try:
            errors[run.name] = train_run(run, data)
        except Interrupted as stop:
            raise Interrupted(
                f"stopped in {run.name}; its checkpoint and the runs before it are kept: "
                f"continue with --out {run.path.parent} --resume",
                stop.exit_code - 128,
            ) from stop
        if errors[run.name]:
            reporter.warn(f"{run.name} failed: {errors[run.name]}")
    return errors


def run_on_ray(runs: Sequence[PlannedRun], data: str, reporter: Reporter, cluster: str) -> Errors:
    """Train the runs that are not finished on a cluster that can reach the sweep's folder.

    cluster is an address as for ray_cluster. Raises ConfigError.
    """
    with (
        redirect_stdout(sys.stderr),  # stdout is for the result alone
        ray_cluster(cluster, "ray.tune", show_logs=True) as ray,
    ):
        return _tune(ray, runs, data, reporter)


def train_run(run: PlannedRun, data: str) -> str:
    """Train one run, from its last checkpoint if it has one.

    Returns why it failed, or an empty text. Raises Interrupted if a signal stopped it.
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
    # A resumed run keeps the settings in its folder.
    fields = _user_code(run.fields) if resume else run.fields
    return {"data": data, "out": str(run.path), "resume": resume, "fields": fields}


def _user_code(fields: Settings) -> Settings:
    """Return the model field if it names the user's code, which is never read from a folder."""
    return {"model": fields["model"]} if ":" in fields.get("model", "") else {}


def _wait_for_stale_process(run: PlannedRun) -> None:
    """Wait until a process that still writes to the folder has ended. Raises OutputError."""
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
    """Return the answer of `sweeper.child` to a request; signals are forwarded to it."""
    command = child_command("onsight.sweeper.child")
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # otherwise Ctrl-C in a terminal would reach it twice
    ) as child:
        assert child.stdin
        assert child.stdout
        with handling(lambda number, frame: child.send_signal(number)):
            with suppress(BrokenPipeError):  # it has already ended
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
    resources = _resources_per_run(ray)
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
        lost = f"its machine was lost: {result.error}" if result.error else ""
        errors[name] = lost or (result.metrics or {})["error"]
    return errors


def _run_trial(
    config: Settings, runs: Sequence[PlannedRun], data: str, threads: int
) -> dict[str, Any]:
    """Train the run that a trial names; Ray Tune calls this on a machine of the cluster."""
    run = next(run for run in runs if run.name == config[_RUN])
    folder = run.path.parent
    if not folder.is_dir():
        return {"error": f"{folder} is not visible there: give --out on a shared disk"}
    run.fields.setdefault("threads", threads)  # a machine may have several trials
    try:
        return {"error": train_run(run, data)}
    except Interrupted:
        raise  # the cluster stops this trial and restarts it elsewhere
    except OnsightError as error:
        return {"error": str(error)}


def _resources_per_run(ray: Any) -> dict[str, float]:
    """Return one GPU and its share of the cores, or all cores of a machine if no GPU exists."""
    machines = live_nodes(ray)
    with_gpus = [machine for machine in machines if machine.get("GPU", 0) >= 1]
    if with_gpus:
        cores = min(machine.get("CPU", 0) // machine["GPU"] for machine in with_gpus)
        return {"cpu": max(1, cores), "gpu": 1}
    # The head of a cluster may have no cores for work.
    cores = min((node["CPU"] for node in machines if node.get("CPU", 0) >= 1), default=1)
    return {"cpu": cores, "gpu": 0}
