"""The same training on a Ray cluster: started, followed, and its results read."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from onsight.cluster.job import Job
from onsight.cluster.notes import Notes, ended_by_ray, raise_failure
from onsight.cluster.session import HEAD, ray_cluster
from onsight.cluster.shares import Share, live_nodes, share_among
from onsight.cluster.trainer import FOLDER, fit
from onsight.config import config_layers, make_config
from onsight.errors import OutputError
from onsight.files import refuse_inside_data, user_path
from onsight.report.console import Reporter
from onsight.training.run import Run, read_results
from onsight.training.run_folder.folder import claim_folder, next_run_folder
from onsight.words import plural

_POLL_SECONDS = 0.5
_WAIT_SECONDS = 30.0  # for the ranks to begin, before the user hears what they wait for


def train_on_cluster(
    data: str,
    cluster: str,
    *,
    out: Path | None = None,
    resume: bool = False,
    recipe: str | None = None,
    config_file: Path | None = None,
    spent_seconds: float = 0.0,
    **fields: Any,
) -> Run:
    """Train as `train` does, in processes of a Ray cluster, and again when some of them are lost.

    cluster: as for ray_cluster; spent_seconds: of a budget, so far. Raises UserError, and
    ClusterFailed with the exit code of whatever ended a rank.
    """
    began = time.monotonic()
    config = make_config(*config_layers(recipe, config_file, fields))
    path = _absolute(out or next_run_folder(data))
    job = Job(*_place(data), str(path), resume, 0.0, _given(recipe, config_file, fields))
    refuse_inside_data(path, data, "../runs/first")
    with ray_cluster(cluster) as ray:
        share = share_among(live_nodes(ray), config.ranks, config.device)
        reporter = Reporter()
        machines = plural(len(live_nodes(ray)), "machine")
        reporter.say(
            f"cluster: {plural(share.processes, 'rank')} on a Ray cluster of {machines} "
            f"({_in_words(share)} each)"
        )
        job = replace(job, spent_seconds=spent_seconds + time.monotonic() - began)
        with _run_folder(path, resume):
            _follow(ray, job, share, reporter)
    return Run(path, _results(path))


@contextmanager
def _run_folder(path: Path, resume: bool) -> Iterator[None]:
    """Make the run folder, which the ranks will claim; it is removed if they leave nothing there.

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


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(user_path(path)))


def _place(data: str) -> tuple[str, bool]:
    """DATA for other machines, and whether it is a path rather than a name."""
    path = _absolute(Path(data))
    return (str(path), True) if path.exists() else (data, False)


def _given(recipe: str | None, config_file: Path | None, fields: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `train` besides DATA and the run folder, with absolute paths."""
    given = dict(fields)
    if recipe:
        given["recipe"] = recipe
    if config_file:
        given["config_file"] = str(_absolute(config_file))
    if given.get("cache_folder") not in (None, "", "none"):
        given["cache_folder"] = str(_absolute(Path(given["cache_folder"])))
    return given


def _in_words(share: Share) -> str:
    cpus = plural(share.cpus, "CPU")
    return f"{cpus} and a GPU" if share.gpus else cpus


def _follow(ray: Any, job: Job, share: Share, reporter: Reporter) -> None:
    """Start the ranks and repeat what they say until they end. Raises what ended them."""
    notes = ray.remote(Notes).options(num_cpus=0, resources=HEAD).remote()
    try:
        with _asking_to_stop(notes):
            ranks = ray.remote(fit).options(num_cpus=0, resources=HEAD, max_retries=0)
            task = ranks.remote(job, notes, share)
            _repeat_lines(ray, task, notes, share, reporter)
        raise_failure(ray.get(notes.why_failed.remote()))
        ray.get(task)
    except ray.exceptions.RayError as error:
        raise ended_by_ray(error) from error


def _repeat_lines(ray: Any, task: Any, notes: Any, share: Share, reporter: Reporter) -> None:
    began, told = time.monotonic(), False
    ended = False
    while not ended:
        ended = bool(ray.wait([task], timeout=_POLL_SECONDS)[0])
        for line in ray.get(notes.take_lines.remote()):
            print(line, file=sys.stderr, flush=True)
        if not told and time.monotonic() - began > _WAIT_SECONDS:
            told = True
            if not ray.get(notes.has_begun.remote()):
                reporter.say(
                    f"waiting for {plural(share.processes, 'rank')} with {_in_words(share)} each: "
                    "`ray status` shows what is free and who has the rest"
                )


@contextmanager
def _asking_to_stop(notes: Any) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM ask the ranks to stop; a second SIGINT ends them at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True
        notes.ask_to_stop.remote(number)

    former = {}
    with suppress(ValueError):  # only the main thread may set handlers
        former = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _results(path: Path) -> Any:
    try:
        return read_results(path)
    except OSError as error:
        raise OutputError(
            f"the ranks have ended, but this machine does not see their results in {path}: give an "
            "--out on storage that every machine of the cluster sees"
        ) from error
