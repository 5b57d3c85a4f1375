"""Run `onsight train` in its own process, forked from one that has loaded torch: 0.3 s, not 5 s.

A trial can be prepared by a function that is called in its process first, and plants a fault.
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
# Not the server that multiprocessing shares: another test may have started it, without `warm`.
SERVER = forkserver.ForkServer()
SERVER.set_forkserver_preload(["warm"])


def _fork(process):
    """Start a process that is forked from one with `warm`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        patch.setattr(forkserver, "connect_to_new_process", SERVER.connect_to_new_process)
        process.start()


# Nothing is left to be measured or chosen, so that runs can be compared bit for bit.
PLAIN = "--model linear --batch-size 16 --threads 1 --precision fp32 --device cpu"
PLAIN += " --folds 1 --plan default --checkpoint-seconds 0 --log none"


@dataclass(frozen=True)
class Ended:
    """The end of a trial: its exit code, or minus the signal that killed it, and its output."""

    code: int
    output: str


class Trial:
    """A command in its own process, with the part of the interface of Popen that is needed."""

    def __init__(self, words, log, prepare=None):
        self.log = log
        words = [str(word) for word in words]
        self.process = FORKS.Process(target=_run, args=(words, str(log), prepare))
        _fork(self.process)
        self.pid = self.process.pid

    def poll(self):
        self.process.join(0)
        return self.process.exitcode

    def kill(self):
        self.process.kill()

    def wait(self, timeout=900):
        self.process.join(timeout)
        output = self.log.read_text(errors="replace") if self.log.exists() else "no output"
        assert self.process.exitcode is not None, f"it hangs: {output}"
        return self.process.exitcode

    def end(self, timeout=900):
        code = self.wait(timeout)
        self.process.close()
        return Ended(code, self.log.read_text(errors="replace"))


def _run(words, log, prepare):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and & ignore both
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


def make_arguments(data, out, *more, epochs=3):
    """The arguments of a small run; more arguments override the plain ones."""
    plain, cache = PLAIN.split(), Path(out).with_name(f"{Path(out).name}-cache")
    pairs = zip(plain[::2], plain[1::2], strict=True)
    settings = [word for name, value in pairs if name not in more for word in (name, value)]
    paths = [data, "--out", out, "--cache-folder", cache]
    return ["train", *paths, "--epochs", epochs, *settings, *more]


def train(data, out, *more, epochs=3, prepare=None):
    """Run a small training in a trial."""
    words = make_arguments(data, out, *more, epochs=epochs)
    return Trial(words, Path(out).with_name(f"{Path(out).name}.log"), prepare).end()


def resume(data, out, *more, prepare=None):
    """Resume a run, or start it again if it was killed before it could be resumed."""
    again = ["--resume"] if (Path(out) / "config.toml").exists() else []
    return train(data, out, *again, *more, prepare=prepare)


def leftovers(out):
    """The names of temporary files in a run folder."""
    return [path.name for path in Path(out).rglob("*.tmp")]
