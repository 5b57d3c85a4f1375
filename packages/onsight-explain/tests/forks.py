"""Runs modules of ours in processes forked from one with torch loaded: 0.1 s each, not 3 s.

Such a process has its own environment and working directory. But what is read when torch is loaded,
such as OMP_NUM_THREADS, stays as it was, and /proc shows the environment of the first process.
"""

import gc
import os
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from onsight_explain.process.supervised import (
    Channel,
    Closed,
    SupervisedChild,
    new_mark,
    signal_group,
)

PRELOADED = (
    "torch._dynamo",  # torch imports it at a script's first step, which takes a second
    "onsight_explain.on_simulated_gpu.child",
    "onsight_explain.process.child",
    "onsight_explain.process.server",
)


class ForkServer:
    """The process with torch loaded; a context that ends it and all that were forked from it."""

    def __init__(self, output):
        self.channel, theirs = Channel.pair()
        paths = [str(Path(__file__).parent), *filter(None, sys.path)]
        variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        self.process = SupervisedChild(
            "forks", output=output, environment=os.environ | variables, channel=theirs
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
        self.process.kill()

    def start(
        self,
        module,
        args=(),
        *,
        output,
        environment=None,
        channel=None,
        mark=None,
        has_terminal=False,
    ):
        """In place of `SupervisedChild(...)`, but its input is always empty."""
        status, theirs = Channel.pair()
        request = {
            "module": module,
            "args": [*args],
            "output": str(output),
            "environment": {**(environment or os.environ), **(mark or new_mark())},
            "folder": os.getcwd(),
        }
        channels = [theirs, channel] if channel else [theirs]
        self.channel.send(request, [each.end.fileno() for each in channels])
        for each in channels:
            each.close()
        answer, _ = status.receive(120.0)  # the first one waits for torch
        return ForkedChild(answer["pid"], status)


class ForkedChild:
    """A forked process, with the interface of SupervisedChild."""

    def __init__(self, pid, status):
        self.pid, self.status = pid, status
        self.code = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def wait(self, seconds=None):
        if self.code is None:
            with suppress(TimeoutError):
                self.code = self.status.receive(seconds)[0]["code"]
        return self.code

    def kill(self):
        signal_group(self.pid)
        if self.code is None:
            with suppress(ProcessLookupError):  # before it leads its group
                os.kill(self.pid, signal.SIGKILL)
        code = self.wait()
        self.status.close()
        return code


def main():
    """Fork for each request on the channel named on the command line."""
    control = Channel.inherited(int(sys.argv[1]))
    for module in PRELOADED:
        import_module(module)
    gc.freeze()  # forked processes share this memory as long as nobody looks for garbage in it
    while True:
        try:
            request, files = control.receive()
        except Closed:
            os._exit(0)
        if not os.fork():
            control.close()
            _fork_and_wait(request, *files)
        for file in files:
            os.close(file)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _fork_and_wait(request, status_file, *files):
    """Fork the requested process, and send its number and then its exit code."""
    status = Channel.inherited(status_file)
    pid = os.fork()
    if not pid:
        status.close()
        _run(request, files)
    for file in files:
        os.close(file)
    status.send({"pid": pid})
    _, state = os.waitpid(pid, 0)
    with suppress(Closed):
        status.send({"code": os.waitstatus_to_exitcode(state)})
    os._exit(0)


def _run(request, files):
    os.setsid()
    os.chdir(request["folder"])
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["module"], *request["args"], *map(str, files)]
    try:
        import_module(request["module"]).main()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    main()
