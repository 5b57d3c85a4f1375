"""A process with torch loaded that is forked for each run of a script, at its start or later.

A request to fork comes with the run's channel. With `is_late`, the first fork runs the script
up to the point from which what-ifs matter, and serves further forks from there.
"""

import functools
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from onsight_explain.json_dataclasses import from_json
from onsight_explain.process.child import ScriptRun
from onsight_explain.process.execution import flush_output, leave, prepare
from onsight_explain.process.failure import FAILED
from onsight_explain.process.supervised import Channel, Closed, kill_marked, own_mark
from onsight_explain.python_process import seconds_since_start
from onsight_explain.script.trace import RunRequest
from onsight_explain.tracing.patches import Patches

_CANNOT_FORK = 76  # the exit code of a copy that reached the fork point with threads running
_STANDARD_FILES = 3  # input, output, errors

_exit_codes: dict[int, int] = {}  # exit codes of forked processes, by pid


def main() -> NoReturn:
    """Serve the channel named on the command line."""
    control = Channel.inherited(int(sys.argv[1]))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    loading_seconds, native_threads = seconds_since_start(), count_native_threads()
    control.send({"ready": True})
    request, channel, is_late = serve(control)
    prepare(request.script, request.args, request.out.parent)
    run = ScriptRun(request.script, channel)
    if is_late:
        _run_to_fork_point(run, channel, threads, native_threads, loading_seconds)
    torch.set_num_threads(threads)
    run.begin(request, channel, loading_seconds)
    run.execute()


def serve(control: Channel, is_forked: bool = False) -> tuple[RunRequest, Channel, bool]:
    """Fork on request; return in each forked process, with its request, channel and `is_late`.

    is_forked: whether this server was itself forked from the first one, which ends everything once
    the other end of its channel is closed.
    """
    while True:
        try:
            message, files = control.receive()
        except Closed:
            if not is_forked:  # stopped processes cannot notice that the channel is closed
                kill_marked(own_mark())
            leave(0)
        if "code" in message:
            control.send({"code": _exit_code(message["code"])})
            continue
        flush_output()
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)  # so that its whole group can be ended
            control.close()
            request = from_json(RunRequest, message["request"])
            _redirect_output(Path(message["output"]))
            return request, Channel.inherited(files[0]), message["is_late"]
        for file in files:
            os.close(file)
        _reap()
        control.send({"pid": pid})


def _run_to_fork_point(
    run: ScriptRun, control: Channel, threads: int, native_threads: int, loading_seconds: float
) -> NoReturn:
    began = time.monotonic()
    import_module("torch._dynamo")  # torch does this at the first step; it takes a second
    native_threads = max(native_threads, count_native_threads())
    is_copy = False

    def on_reached() -> None:
        is_ready = can_fork(native_threads)
        if is_copy and not is_ready:
            leave(_CANNOT_FORK)
        control.send({"ready": is_ready})
        elapsed = loading_seconds + time.monotonic() - began
        request, channel, _ = serve(control, is_forked=True)
        reopen_files()
        torch.set_num_threads(point.threads)
        run.begin(request, channel, elapsed)

    def is_thread_lasting() -> bool:
        """Let a copy start the thread: it may have ended when the copy reaches the fork point."""
        nonlocal is_copy
        if is_copy or not can_fork(native_threads):
            return False
        flush_output()
        pid = os.fork()
        if not pid:
            is_copy, run.process = True, os.getpid()
            return False
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != _CANNOT_FORK:
            leave(FAILED if code else 0)
        return True

    torch.set_num_threads(threads)
    point = ForkPoint(on_reached, is_thread_lasting)
    point.install()
    run.execute()


class ForkPoint:
    """Stops a script at its first call of torch that a what-if can change.

    Until then torch computes in one thread, because a thread pool does not survive a fork. The
    number of threads that the script sets is remembered in `threads`.
    """

    def __init__(
        self, on_reached: Callable[[], None], is_thread_lasting: Callable[[], bool]
    ) -> None:
        # Called at that point in the script's frame; afterwards the call is made, as what-ifs
        # may have changed it.
        self.on_reached = on_reached
        # Called before a thread is started; True if that is the point already.
        self.is_thread_lasting = is_thread_lasting
        self.threads = torch.get_num_threads()
        self._patches = Patches()

    def install(self) -> None:
        """Start watching."""
        torch.set_num_threads(1)
        for owner, name in _fork_calls():
            self._patches.put(owner, name, self._stop_before(owner, name))
        self._patches.put(torch, "set_num_threads", self._set_threads)
        self._patches.put(torch, "get_num_threads", lambda: self.threads)
        original = threading.Thread.start

        @functools.wraps(original)
        def start(thread: threading.Thread) -> None:
            if _is_main_thread() and self.is_thread_lasting():
                self._reach()
            original(thread)

        self._patches.put(threading.Thread, "start", start)

    def _stop_before(self, owner: Any, name: str) -> Callable[..., Any]:
        proceed = getattr(owner, name)
        is_reached = False

        @functools.wraps(proceed)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal proceed, is_reached
            # Lightning puts this function back after we have restored the original one.
            if not is_reached and _is_main_thread():
                is_reached = True
                self._reach()
                proceed = getattr(owner, name)
            return proceed(*args, **kwargs)

        return call

    def _reach(self) -> None:
        self._patches.undo()
        self.on_reached()

    def _set_threads(self, count: int) -> None:
        self.threads = count


def can_fork(native_threads: int) -> bool:
    """Return whether the script has started no threads or processes, which a fork would lose.

    native_threads: the number of threads before the script ran, including those of libraries.
    """
    return (
        threading.active_count() == 1
        and not active_children()
        and count_native_threads() <= native_threads
    )


def count_native_threads() -> int:
    """Return the number of threads of this process, including those of libraries."""
    return len(os.listdir("/proc/self/task"))


def reopen_files() -> None:
    """Give a forked process separate positions in the files that are open for reading."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number < _STANDARD_FILES or not _is_open_for_reading(number):
            continue
        position = os.lseek(number, 0, os.SEEK_CUR)
        reopened = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        os.lseek(reopened, position, os.SEEK_SET)
        os.dup2(reopened, number, inheritable=False)
        os.close(reopened)


def _is_open_for_reading(number: int) -> bool:
    import fcntl

    try:
        is_file = stat.S_ISREG(os.fstat(number).st_mode)
        access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:  # closed meanwhile, such as the directory listing itself
        return False
    return is_file and access == os.O_RDONLY


def _fork_calls() -> Iterator[tuple[Any, str]]:
    """Yield the functions of torch whose first call a what-if can change."""
    yield DataLoader, "__init__"
    yield nn.Module, "__call__"
    yield torch.autograd, "backward"
    yield BaseProcess, "__init__"  # a child process belongs to its creator
    optimizers: list[type] = [Optimizer, *_subclasses(Optimizer)]
    for kind in optimizers:
        if "__init__" in vars(kind):
            yield kind, "__init__"


def _subclasses(base: type) -> Iterator[type]:
    derived: list[type] = type.__subclasses__(base)
    for kind in derived:
        yield kind
        yield from _subclasses(kind)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _redirect_output(path: Path) -> None:
    """Redirect the output of this process to a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _reap() -> None:
    """Collect the exit codes of forked processes that have ended."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _exit_codes[pid] = os.waitstatus_to_exitcode(status)


def _exit_code(pid: int) -> int | None:
    """Wait for a forked process, which has ended or is about to, and return its exit code."""
    with suppress(ChildProcessError):
        while pid not in _exit_codes:
            ended, status = os.waitpid(-1, 0)
            _exit_codes[ended] = os.waitstatus_to_exitcode(status)
    return _exit_codes.get(pid)


if __name__ == "__main__":
    # Under its name: `Sites.origin` must recognize the frames of this module as ours.
    from onsight_explain.process import server

    server.main()
