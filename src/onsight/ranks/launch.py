"""Starts the ranks of a run on this machine with torch's elastic launcher.

Nothing listens on other interfaces than loopback: neither the store nor gloo and NCCL.
"""

import json
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from onsight.errors import Interrupted, OnsightError, RankLost
from onsight.ranks.meeting import LOOPBACK, host_store, store_variables
from onsight.ranks.watchdog import LauncherWatchdog
from onsight.text import resume_hint
from onsight_explain.python_process import child_command

_JOB_ENDED = "; the job was ended"
_LAUNCHER_LOGGERS = "torch.distributed.elastic"


class RankFailed(OnsightError):
    """A rank failed; the message is its own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def launch(
    request: dict[str, Any],
    ranks: int,
    run: Path,
    restarts: int = 0,
    warn: Callable[[str], None] = lambda line: None,
) -> None:
    """Run training/worker.py in a process per rank and wait until they exit.

    Args:
        request: Arguments of `train`, as JSON values.
        ranks: The number of ranks.
        run: The run folder.
        restarts: How often the job is restarted after it has lost a rank.
        warn: Called with a message at each restart.

    Raises:
        RankFailed: If a rank failed.
        RankLost: If a rank was lost, after all restarts.
        Interrupted: If a signal stopped the job.
    """
    for number in range(1, restarts + 1):
        try:
            _launch_once(request, ranks, run)
        except RankLost as error:
            cause = str(error).partition(_JOB_ENDED)[0]
            warn(f"{cause}; the ranks are started again ({number} of at most {restarts} times)")
            request = request | {"restarted": True}
        else:
            return
    _launch_once(request, ranks, run)


def _launch_once(request: dict[str, Any], ranks: int, run: Path) -> None:
    """Launch the ranks, without torch's restarts: they are silent and also follow user errors."""
    with (
        tempfile.TemporaryDirectory(prefix="onsight-") as folder,
        _host_store(ranks) as watchdog,
        _quiet_launcher(),
    ):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id="onsight",
            rdzv_backend="c10d",
            rdzv_endpoint=str(Path(folder) / "rendezvous"),
            rdzv_configs={"store_type": "file"},
            logs_specs=DefaultLogsSpecs(folder),  # the default leaves a folder behind
            max_restarts=0,
        )
        python, *arguments = child_command("onsight.training.worker")
        try:
            elastic_launch(config, python)(*arguments, json.dumps(request))
        except ChildFailedError as error:
            raise _to_error(error.failures, run, watchdog.describe) from None
        except SignalException as error:
            raise Interrupted(f"stopped; {_resume_hint(run)}", int(error.sigval)) from None


def _to_error(
    failures: dict[int, ProcessFailure],
    run: Path,
    describe: Callable[[int], str] = "rank {}".format,
) -> OnsightError:
    """Return the error for the failure that caused the others."""
    rank, first = min(failures.items(), key=_likeliest_cause)
    if first.exitcode < 0:
        return RankLost(
            f"{describe(rank)} was lost, killed by {first.signal_name()}{_JOB_ENDED}; "
            f"{_resume_hint(run)}"
        )
    message = first.error_file_data["message"]
    if isinstance(message, dict) and "exit_code" in message["extraInfo"]:
        text, facts = message["message"], message["extraInfo"]
        if facts["lost"]:
            return RankLost(f"{text}; {_resume_hint(run)}")
        return RankFailed(
            f"rank {rank} failed:\n{text}" if facts["bug"] else text, facts["exit_code"]
        )
    return RankFailed(f"rank {rank} failed; its own messages are above", 1)


def _likeliest_cause(item: tuple[int, ProcessFailure]) -> tuple[bool, int, bool]:
    """Sort the first failure first; of simultaneous ones, that of a killed rank."""
    _, failure = item
    ended_by_launcher = failure.exitcode == -signal.SIGTERM  # because another rank failed
    return ended_by_launcher, failure.timestamp, failure.exitcode > 0


def _resume_hint(run: Path) -> str:
    if not (run / "checkpoints" / "last.safetensors").exists():
        return "there was no checkpoint yet"
    return resume_hint(run)


@contextmanager
def _host_store(ranks: int) -> Iterator[LauncherWatchdog]:
    """Host a store for the ranks on the loopback interface; yield a watchdog that uses it."""
    store, address = host_store(LOOPBACK)
    variables = {
        **store_variables(address),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # the launcher's own would listen everywhere
    }
    previous = {name: os.environ[name] for name in variables if name in os.environ}
    watchdog = LauncherWatchdog(PrefixStore("watchdog", store), ranks)
    os.environ |= variables
    try:
        yield watchdog
    finally:
        watchdog.stop()
        for name in variables:
            os.environ.pop(name, None)
        os.environ |= previous


@contextmanager
def _quiet_launcher() -> Iterator[None]:
    """Silence torch's launcher, and restore the signal handlers that it replaces."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    names = [n for n in logging.root.manager.loggerDict if n.startswith(_LAUNCHER_LOGGERS)]
    loggers = [logging.getLogger(name) for name in names]  # each has its own level
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in loggers:
            logger.disabled = False
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number, handler in handlers.items():
                signal.signal(number, handler)
