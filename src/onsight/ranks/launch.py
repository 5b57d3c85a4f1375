"""Starts the ranks of a run on this machine with torch's own elastic launcher.

Nothing listens beyond loopback: the store where the ranks meet is bound to it, and gloo and NCCL
are told to use its interface.
"""

import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from onsight.errors import Interrupted, OnsightError, RankLost
from onsight.ranks.watchdog import LAUNCHED, LauncherWatchdog
from onsight_explain.python_process import child_command

_LOOPBACK = "127.0.0.1"
_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
_ENDED = "; the job was ended"
_TALKERS = "torch.distributed.elastic"


class RankFailed(OnsightError):
    """A rank ended with an error message, which this error repeats."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def launch(
    request: dict[str, Any],
    ranks: int,
    run: Path,
    restarts: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Run training/worker.py as the given number of ranks and wait until they end.

    request: arguments of train, as JSON values; restarts: how often a job that has lost a rank is
    started again; say: told of each time. Raises RankFailed, RankLost, Interrupted.
    """
    for number in range(1, restarts + 1):
        try:
            _launch_once(request, ranks, run)
        except RankLost as lost:
            what = str(lost).partition(_ENDED)[0]
            say(f"{what}; the ranks are started again ({number} of at most {restarts} times)")
            request = request | {"restarted": True}
        else:
            return
    _launch_once(request, ranks, run)


def _launch_once(request: dict[str, Any], ranks: int, run: Path) -> None:
    """Launch the ranks with torch's launcher.

    Its own restarts would repeat a user's mistake as often as the loss of a rank, without a word.
    """
    with (
        tempfile.TemporaryDirectory(prefix="onsight-") as folder,
        _watched_store(ranks) as watchdog,
        _former_handlers(),
    ):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id="onsight",
            rdzv_backend="c10d",
            rdzv_endpoint=str(Path(folder) / "rendezvous"),
            rdzv_configs={"store_type": "file"},
            logs_specs=DefaultLogsSpecs(folder),  # otherwise it leaves a folder behind
            max_restarts=0,
        )
        python, *words = child_command("onsight.training.worker")
        try:
            elastic_launch(config, python)(*words, json.dumps(request))
        except ChildFailedError as error:
            raise _explain(error.failures, run, watchdog.describe) from None
        except SignalException as error:
            raise Interrupted(f"stopped; {_resume_hint(run)}", int(error.sigval)) from None


def _explain(
    failures: dict[int, ProcessFailure],
    run: Path,
    describe: Callable[[int], str] = "rank {}".format,
) -> OnsightError:
    """Describe the first failure; if two happen together, a killed rank is the cause."""
    rank, first = min(failures.items(), key=_by_cause)
    if first.exitcode < 0:
        return RankLost(
            f"{describe(rank)} was lost, killed by {first.signal_name()}{_ENDED}; "
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


def _by_cause(failed: tuple[int, ProcessFailure]) -> tuple[bool, int, bool]:
    _, failure = failed
    ended_by_launcher = failure.exitcode == -signal.SIGTERM  # because another failed
    return ended_by_launcher, failure.timestamp, failure.exitcode > 0


def _resume_hint(run: Path) -> str:
    if not (run / "checkpoints" / "last.safetensors").exists():
        return "there was no checkpoint yet"
    return f"continue from its last checkpoint with --out {run} --resume"


@contextmanager
def _watched_store(ranks: int) -> Iterator[LauncherWatchdog]:
    """A store for the ranks, hosted by this process and bound to loopback, and their watchdog."""
    listening = socket.create_server((_LOOPBACK, 0))
    address = f"{_LOOPBACK}:{listening.getsockname()[1]}"
    variables = {
        LAUNCHED: address,
        "GLOO_SOCKET_IFNAME": _INTERFACE,
        "NCCL_SOCKET_IFNAME": _INTERFACE,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # the launcher's own would listen everywhere
    }
    former = {name: os.environ.get(name) for name in variables}
    store = TCPStore(
        _LOOPBACK,
        listening.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    watchdog = LauncherWatchdog(PrefixStore("watchdog", store), ranks)
    os.environ |= variables
    try:
        yield watchdog
    finally:
        watchdog.leave()
        for name, value in former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _former_handlers() -> Iterator[None]:
    """Silence the launcher's log, and restore the signal handlers that it replaces."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    names = [n for n in logging.root.manager.loggerDict if n.startswith(_TALKERS)]
    talkers = [logging.getLogger(name) for name in names]  # each has its own level
    for talker in talkers:
        talker.disabled = True
    try:
        yield
    finally:
        for talker in talkers:
            talker.disabled = False
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number, handler in handlers.items():
                signal.signal(number, handler)
