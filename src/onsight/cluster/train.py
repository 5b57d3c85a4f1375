"""`train --cluster`: start the ranks of a run on a Ray cluster, and follow them to the end."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from onsight.cluster.job import JobState, TrainingJob, make_ray_error, raise_failure
from onsight.cluster.ranks import FOLDER, run_ranks
from onsight.cluster.session import HEAD, Allocation, allocate, list_live_nodes, ray_cluster
from onsight.config import make_config
from onsight.config_files import config_layers
from onsight.errors import OutputError
from onsight.files import refuse_inside_data, user_path
from onsight.ranks.signals import handle_stop_signals
from onsight.report.console import Reporter
from onsight.text import plural
from onsight.training.run import Run, read_results
from onsight.training.run_folder import choose_run_folder, claim_folder

_POLL_SECONDS = 0.5
_WAITING_SECONDS = 30.0  # time until a message says that the ranks wait for CPUs or GPUs


def train_on_cluster(
    data: str,
    cluster: str,
    *,
    out: Path | None = None,
    resume: bool = False,
    recipe: str | None = None,
    config_file: Path | None = None,
    verbose: bool = False,
    spent_seconds: float = 0.0,
    **fields: Any,
) -> Run:
    """Train as `train` does, in processes of a Ray cluster; lost ones are restarted.

    The arguments are those of `train`. cluster: its address, as for ray_cluster; spent_seconds: the
    part of the budget that is already used.

    Raises:
        UserError: An argument is invalid.
        ClusterFailed: A rank failed; has its exit code.
    """
    started = time.monotonic()
    config = make_config(*config_layers(recipe, config_file, fields))
    path = _make_absolute(out or choose_run_folder(data))
    arguments = _make_arguments_absolute(recipe, config_file, fields)
    refuse_inside_data(path, data, "../runs/first")
    with ray_cluster(cluster, "ray.train") as ray:
        nodes = list_live_nodes(ray)
        allocation = allocate(nodes, config.ranks, config.device)
        reporter = Reporter()
        reporter.say(
            f"cluster: {plural(allocation.processes, 'rank')} on a Ray cluster of "
            f"{plural(len(nodes), 'machine')} ({_describe(allocation)} each)"
        )
        spent_seconds += time.monotonic() - started
        job = TrainingJob(*_locate(data), str(path), resume, spent_seconds, arguments, verbose)
        with _make_run_folder(path, resume):
            _follow(ray, job, allocation, reporter)
    return Run(path, _read_results(path))


def _make_absolute(path: Path) -> Path:
    return Path(os.path.abspath(user_path(path)))


def _locate(data: str) -> tuple[str, bool]:
    """Return DATA, absolute if it is a path, and whether it is a path rather than a name."""
    path = _make_absolute(Path(data))
    return (str(path), True) if path.exists() else (data, False)


def _make_arguments_absolute(
    recipe: str | None, config_file: Path | None, fields: dict[str, Any]
) -> dict[str, Any]:
    """Return the other arguments of `train`, with absolute paths."""
    arguments = dict(fields)
    if recipe:
        arguments["recipe"] = recipe
    if config_file:
        arguments["config_file"] = str(_make_absolute(config_file))
    if arguments.get("cache_folder") not in (None, "", "none"):
        arguments["cache_folder"] = str(_make_absolute(Path(arguments["cache_folder"])))
    return arguments


def _describe(allocation: Allocation) -> str:
    cpus = plural(allocation.cpus, "CPU")
    return f"{cpus} and a GPU" if allocation.gpus else cpus


@contextmanager
def _make_run_folder(path: Path, resume: bool) -> Iterator[None]:
    """Make the run folder, which the ranks will claim, and remove it if they leave it empty.

    Raises OutputError as claim_folder does.
    """
    folder = claim_folder(path, resume)
    folder.release()
    folder.make_checkpoints()
    try:
        yield
    finally:
        shutil.rmtree(path / "checkpoints" / FOLDER, ignore_errors=True)
        with suppress(OutputError):
            claim_folder(path, resume=False).release()


def _follow(ray: Any, job: TrainingJob, allocation: Allocation, reporter: Reporter) -> None:
    """Start the ranks and print their lines until they end. Raises the error that ended them."""
    state = ray.remote(JobState).options(num_cpus=0, resources=HEAD).remote()
    try:
        with _forwarding_signals(state):
            start = ray.remote(run_ranks).options(num_cpus=0, resources=HEAD, max_retries=0)
            task = start.remote(job, state, allocation)
            _print_lines(ray, task, state, allocation, reporter)
        raise_failure(ray.get(state.get_failure.remote()))
        ray.get(task)
    except ray.exceptions.RayError as error:
        raise make_ray_error(error) from error


def _print_lines(
    ray: Any, task: Any, state: Any, allocation: Allocation, reporter: Reporter
) -> None:
    started, has_warned = time.monotonic(), False
    ended = False
    while not ended:
        ended = bool(ray.wait([task], timeout=_POLL_SECONDS)[0])
        for line in ray.get(state.take_lines.remote()):
            print(line, file=sys.stderr, flush=True)
        if not has_warned and time.monotonic() - started > _WAITING_SECONDS:
            has_warned = True
            if not ray.get(state.has_started.remote()):
                reporter.say(
                    f"waiting for {plural(allocation.processes, 'rank')} with "
                    f"{_describe(allocation)} each: `ray status` shows free and used resources"
                )


def _forwarding_signals(state: Any) -> AbstractContextManager[None]:
    """Request a stop on the first signal to stop; a second one, SIGINT, ends the ranks at once."""
    requested = False

    def request_stop(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        requested = True
        state.request_stop.remote(number)

    return handle_stop_signals(request_stop)


def _read_results(path: Path) -> Any:
    try:
        return read_results(path)
    except OSError as error:
        raise OutputError(
            f"the ranks have ended, but their results are not in {path} on this machine: give an "
            "--out on storage that every machine of the cluster shares"
        ) from error
