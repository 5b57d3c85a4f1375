"""Starts, continues or leaves alone one run of a sweep, and says what came of it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from onsight.errors import Interrupted, OutputError
from onsight.sweeper.folder import PlannedRun
from onsight.sweeper.space import Settings
from onsight.training.ranks.signals import handling
from onsight.training.run_folder.folder import lock_folder
from onsight_explain.child_command import child_command

_FORMER_SECONDS = 30  # for a run to end whose sweep was killed
_STOPPED = {129, 130, 143}  # exit codes after SIGHUP, SIGINT and SIGTERM


def run_one(run: PlannedRun, data: str) -> str:
    """Train one run, from its last checkpoint if it has one; return why it failed, or nothing.

    Raises Interrupted if a signal stopped it.
    """
    if run.is_finished:
        return ""
    _await_former(run)
    said = _ask(_request(run, data))
    if said.get("exit_code") in _STOPPED:
        raise Interrupted(said["error"], said["exit_code"] - 128)
    return str(said.get("error", ""))


def _request(run: PlannedRun, data: str) -> dict[str, Any]:
    resume = run.is_begun
    fields = _named_code(run.fields) if resume else run.fields  # a run keeps what it resolved
    return {"data": data, "out": str(run.path), "resume": resume, "fields": fields}


def _named_code(fields: Settings) -> Settings:
    """The network, if it is the user's code: a folder's config alone may not name it."""
    return {"model": fields["model"]} if ":" in fields.get("model", "") else {}


def _await_former(run: PlannedRun) -> None:
    """Wait until a process that still writes to the folder has ended. Raises OutputError."""
    deadline = time.monotonic() + _FORMER_SECONDS
    while run.path.is_dir():
        try:
            os.close(lock_folder(run.path))
            return
        except OutputError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    """What a process of its own answers; signals are handed on to it."""
    pipe = subprocess.PIPE
    command = child_command("onsight.sweeper.child")
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True
    ) as child:
        assert child.stdin
        assert child.stdout
        with _handing_on(child.send_signal):
            with suppress(BrokenPipeError):  # it has ended already
                child.stdin.write(json.dumps(request).encode() + b"\n")
            answer = child.stdout.readline()
            code = child.wait()
    if not answer:
        return {"error": _how_it_ended(code), "exit_code": 128 - code if code < 0 else code}
    said: dict[str, Any] = json.loads(answer)
    return said


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}; its own messages are above"
    number = signal.Signals(-code)
    memory = ", perhaps because memory ran out" if number == signal.SIGKILL else ""
    return f"its process was ended by {number.name}{memory}"


def _handing_on(send: Callable[[int], None]) -> AbstractContextManager[None]:
    """Signals that ask this process to stop are the child's while it runs.

    It is in a session of its own, so that a terminal's Ctrl-C reaches it once.
    """
    return handling(lambda number, frame: send(number))
