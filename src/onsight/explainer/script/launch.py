"""Starts the processes that run a script, limits their time, and ends everything they started."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from onsight.errors import ScriptFailed
from onsight.explainer.script.failure import failure_words
from onsight.explainer.script.processes import MARK, end_marked
from onsight.explainer.script.ranks import gather, rank_environments
from onsight.explainer.script.trace import Request, Trace
from onsight.explainer.what_ifs.what_if import WhatIf
from onsight.hardware.spinning import SHORT_SPIN, SPIN_VARIABLE

_GRACE_SECONDS = 15.0  # after the time at which the process should end by itself
_PAUSE_SECONDS = 0.02  # between two looks at the processes
_CHILD = "onsight.explainer.script.child"
_SHOWN_BYTES = 4000  # of the end of a failed script's output
_KEPT_BYTES = 64 << 20  # of its output, before it is dropped


class Launcher:
    """Runs one script several times, each time in a fresh process, or in one for each rank.

    seconds, steps: to measure in each run, at most; limit_seconds: for each run, from its start.
    """

    def __init__(
        self,
        script: Path,
        args: list[str],
        seconds: float,
        steps: int,
        limit_seconds: float,
        ranks: int = 1,
    ) -> None:
        self.script, self.args = script.resolve(), args
        self.seconds, self.steps, self.limit_seconds = seconds, steps, limit_seconds
        self.ranks = ranks

    def run(
        self, what_ifs: Sequence[WhatIf] = (), is_full: bool = False, timelines: Path | None = None
    ) -> Trace:
        """The trace of a run with these changes. Raises ScriptFailed.

            timelines: a folder for those of all ranks, if they
        are wanted.
        """
        with tempfile.TemporaryDirectory(prefix="onsight-explain-") as folder:
            request = Request(
                script=self.script,
                args=self.args,
                seconds=self.seconds,
                steps=self.steps,
                limit_seconds=self.limit_seconds,
                out=Path(folder) / "trace.json",
                changes={one.name: one.value for one in what_ifs},
                is_full=is_full,
                timelines=timelines,
            )
            asked = Path(folder) / "request.json"
            asked.write_text(request.model_dump_json(), encoding="utf-8")
            said = [Path(folder) / f"said-{rank}.txt" for rank in range(self.ranks)]
            common = _environment(what_ifs, self.script)
            codes = run_children(
                _CHILD,
                asked,
                dict(zip(said, rank_environments(common, self.ranks), strict=True)),
                self.limit_seconds,
                lambda: gather(request.out, is_complete=True) is not None,
            )
            trace = gather(request.out)
            # What a rank said that failed by itself, and not because another one was gone.
            rank = next((rank for rank, code in enumerate(codes) if code), 0)
            words = last_words(said[rank])
        if trace is None:
            whose = f"rank {rank}: " if self.ranks > 1 else ""
            raise ScriptFailed(whose + failure_words(words, codes[rank], self.script.name))
        if not trace.images:
            trace.last_words = words
        return trace


def run_child(
    module: str, asked: Path, said: Path, limit_seconds: float, environment: dict[str, str]
) -> int | None:
    """Run a module that reads its request from a file; its exit code, or None if it was killed.

    said: where its output goes; limit_seconds: at which it should end by itself.
    """
    return run_children(module, asked, {said: environment}, limit_seconds, lambda: False)[0]


def run_children(
    module: str,
    asked: Path,
    environments: dict[Path, dict[str, str]],
    limit_seconds: float,
    is_done: Callable[[], bool],
) -> list[int | None]:
    """Run a module in several processes until it is done or one fails; then end all of them.

    environments: of each process, by the file for its output. Returns their exit codes, None for
    those that were still running.
    """
    mark = uuid.uuid4().hex
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for said, environment in environments.items():
            with said.open("ab") as out:  # so that what it said can be dropped while it runs
                process = subprocess.Popen(
                    [sys.executable, "-m", module, str(asked)],
                    env=environment | {MARK: mark},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that all its children can be killed with it
                )
            processes.append(process)
        return _wait(processes, list(environments), limit_seconds + _GRACE_SECONDS, is_done)
    finally:
        end_marked(mark)  # also those that left the group, such as daemons
        for process in processes:
            _end_group(process)  # for systems on which nothing is found by its mark


def last_words(said: Path) -> str:
    """The end of a process's output."""
    with said.open("rb") as file:
        file.seek(max(0, said.stat().st_size - _SHOWN_BYTES))
        return file.read().decode(errors="replace").strip()


def _wait(
    processes: list[subprocess.Popen[bytes]],
    said: list[Path],
    seconds: float,
    is_done: Callable[[], bool],
) -> list[int | None]:
    until = time.monotonic() + seconds
    while True:
        codes = [process.poll() for process in processes]
        ended = [code for code in codes if code is not None]
        if any(ended) or len(ended) == len(codes) or time.monotonic() > until or is_done():
            return codes
        for one in said:
            if one.stat().st_size > _KEPT_BYTES:
                os.truncate(one, 0)
        time.sleep(_PAUSE_SECONDS)


def _environment(what_ifs: Sequence[WhatIf], script: Path) -> dict[str, str]:
    """The user's own, without what Onsight's command line sets for itself."""
    environment = dict(os.environ)
    if environment.get(SPIN_VARIABLE) == SHORT_SPIN:
        del environment[SPIN_VARIABLE]
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # nothing is written into the script's folder
    if script.suffix == ".ipynb":
        environment["MPLBACKEND"] = "agg"  # a notebook's pictures are not shown
    for what_if in what_ifs:
        environment |= what_if.environment
    return environment


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and everything in its group, such as a loader's workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
