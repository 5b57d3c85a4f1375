"""`onsight train` in a process of its own, forked from one that has loaded torch: 0.3 s, not 5 s.

A trial may be prepared by a function that is called in it first, and that plants a fault.
"""

import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

import pytest

FORKS = multiprocessing.get_context("forkserver")


def _start_server():
    """Start the process that trials are forked from; its paths are in the environment."""
    FORKS.set_forkserver_preload(["warm"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        forkserver.ensure_running()


# Everything that could be measured or chosen is settled, so that bits can be compared.
PLAIN = "--model linear --batch-size 16 --threads 1 --precision fp32 --device cpu"
PLAIN += " --folds 1 --plan default --checkpoint-seconds 0 --log none"


@dataclass(frozen=True)
class Ended:
    """How a trial ended: its exit code, minus the signal if one killed it, and what it printed."""

    code: int
    said: str


class Trial:
    """A command in a process of its own, with the interface of a Popen as far as it is needed."""

    def __init__(self, words, log, prepare=None):
        _start_server()
        self.log = log
        words = [str(word) for word in words]
        self.process = FORKS.Process(target=_run, args=(words, str(log), prepare))
        self.process.start()
        self.pid = self.process.pid

    def poll(self):
        self.process.join(0)
        return self.process.exitcode

    def kill(self):
        self.process.kill()

    def wait(self, timeout=900):
        self.process.join(timeout)
        said = self.log.read_text(errors="replace") if self.log.exists() else "nothing yet"
        assert self.process.exitcode is not None, f"it hangs: {said}"
        return self.process.exitcode

    def end(self, timeout=900):
        code = self.wait(timeout)
        self.process.close()
        return Ended(code, self.log.read_text(errors="replace"))


def _run(words, log, prepare):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # both are ignored under nohup and &
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    from onsight.cli import main

    if prepare:
        prepare()
    main(words)


def training(data, out, *more, epochs=3):
    """The words of a small run; more words take the place of plain ones."""
    words, cache = PLAIN.split(), Path(out).with_name(f"{Path(out).name}-cache")
    plain = zip(words[::2], words[1::2], strict=True)
    settings = [word for name, value in plain if name not in more for word in (name, value)]
    paths = [data, "--out", out, "--cache-folder", cache]
    return ["train", *paths, "--epochs", epochs, *settings, *more]


def train(data, out, *more, epochs=3, prepare=None):
    """Run it to its end."""
    words = training(data, out, *more, epochs=epochs)
    return Trial(words, Path(out).with_name(f"{Path(out).name}.log"), prepare).end()


def resume(data, out, *more, prepare=None):
    """Go on with a run, or begin again if it was killed before it had begun."""
    again = ["--resume"] if (Path(out) / "config.toml").exists() else []
    return train(data, out, *again, *more, prepare=prepare)


def leftovers(out):
    """Names of temporary files in a run folder."""
    return [path.name for path in Path(out).rglob("*.tmp")]
