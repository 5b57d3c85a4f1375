"""A process that has torch loaded and is forked for each run of a script, at its start or later.

It is told to `fork`, with a request and the other end of that run's channel. `late`: it first
forks one that runs the script up to the point where what-ifs begin to matter, and serves there.
"""

import os
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import torch

from onsight_explain.json_dataclasses import from_json
from onsight_explain.process.channel import Channel, Closed
from onsight_explain.process.child import ScriptRun
from onsight_explain.process.ending import FAILED, leave
from onsight_explain.process.executing import prepare
from onsight_explain.process.forkpoint import ForkPoint, count_native_threads, own_files, why_not
from onsight_explain.process.leftovers import end_marked, own_mark
from onsight_explain.script.trace import Request
from onsight_explain.uptime import seconds_since_start

_CANNOT_BE_FORKED = 76  # the exit code of a copy that came to its point with threads

_codes: dict[int, int] = {}  # of forked processes that have ended, by pid


def serve(control: Channel, is_forked: bool = False) -> tuple[Request, Channel, bool]:
    """Fork when asked. Returns in each forked process, with its request, channel and `late`.

    is_forked: from the first server, which ends everything when nobody asks any more.
    """
    while True:
        try:
            message, files = control.receive()
        except Closed:
            if not is_forked:  # what is stopped cannot see by itself that nobody asks any more
                end_marked(own_mark())
            leave(0)
        if "code" in message:
            control.send({"code": _code_of(message["code"])})
            continue
        _flush()
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)  # so that it can be ended with everything that it starts
            control.close()
            request = from_json(Request, message["request"])
            _say_into(Path(message["said"]))
            return request, Channel.inherited(files[0]), message["late"]
        for file in files:
            os.close(file)
        _reap()
        control.send({"pid": pid})


def main() -> NoReturn:
    """Serve the channel named on the command line."""
    control = Channel.inherited(int(sys.argv[1]))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    loading, native_threads = seconds_since_start(), count_native_threads()
    control.send({"ready": True})
    request, channel, is_late = serve(control)
    prepare(request.script, request.args, request.out.parent)
    run = ScriptRun(request.script, channel)
    if is_late:
        _run_to_fork_point(run, channel, threads, native_threads, loading)
    torch.set_num_threads(threads)
    run.begin(request, channel, loading)
    run.execute()


def _run_to_fork_point(
    run: ScriptRun, control: Channel, threads: int, native_threads: int, loading: float
) -> NoReturn:
    begun = time.monotonic()
    import_module("torch._dynamo")  # what torch does at the first step takes a second
    native_threads = max(native_threads, count_native_threads())
    is_copy = False

    def reached() -> None:
        problem = why_not(native_threads)
        if problem and is_copy:
            leave(_CANNOT_BE_FORKED)
        control.send({"ready": not problem, "problem": problem})
        earlier = loading + time.monotonic() - begun
        request, channel, _ = serve(control, is_forked=True)
        own_files()
        torch.set_num_threads(point.threads)
        run.begin(request, channel, earlier)

    def is_here() -> bool:
        """Let a copy go on with the thread, which may have ended when it comes to the point."""
        nonlocal is_copy
        if is_copy or why_not(native_threads):
            return False
        _flush()
        pid = os.fork()
        if not pid:
            is_copy, run.process = True, os.getpid()
            return False
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != _CANNOT_BE_FORKED:
            leave(FAILED if code else 0)
        return True

    torch.set_num_threads(threads)
    point = ForkPoint(reached, is_here)
    point.install()
    run.execute()


def _say_into(path: Path) -> None:
    """Send what this process prints into a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _flush() -> None:
    """Leave nothing to be printed by each forked process again."""
    sys.stdout.flush()
    sys.stderr.flush()


def _reap() -> None:
    """Let go of forked processes that have ended."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _codes[pid] = os.waitstatus_to_exitcode(status)


def _code_of(pid: int) -> int | None:
    """The exit code of a forked process, which has ended or is about to."""
    with suppress(ChildProcessError):
        while pid not in _codes:
            ended, status = os.waitpid(-1, 0)
            _codes[ended] = os.waitstatus_to_exitcode(status)
    return _codes.get(pid)


if __name__ == "__main__":
    main()
