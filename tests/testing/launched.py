"""Commands of several ranks as real processes, identified by their own temporary folder."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import pytest

SMALL = ["--folds", 1, "--threads", 1, "--model", "lenet", "--image-size", 16, "--batch-size", 16]
USERS = '''
import os
import sys
from types import SimpleNamespace
from torch import nn
from onsight.models.classic import LeNet


def write_blank_report(run):
    (run / "report.html").touch()
    return run / "report.html"


if "ONSIGHT_STORE" in os.environ:  # in a rank, where importing the real one takes seconds
    sys.modules["onsight.report.page"] = SimpleNamespace(write_report=write_blank_report)


class Faulty(nn.Module):
    """Raises in its third training step."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 2)
        self.calls = 0

    def forward(self, images):
        self.calls += self.training
        if self.calls == 3 and os.environ["RANK"] in RANKS:
            raise RuntimeError("a connection of mine is missing")
        return self.linear(images.flatten(1))


class Precise(nn.Module):
    """In float64, where rounding that depends on the number of ranks makes no difference."""

    def __init__(self):
        super().__init__()
        self.net = LeNet((1, 16, 16), 2).double()

    def forward(self, images):
        return self.net(images.double())
'''


def write_module(folder, ranks=""):
    """Write a user's module `theirs`, whose network Faulty fails on some ranks."""
    (folder / "theirs.py").write_text(f"RANKS = {ranks!r}\n{USERS}")


def write_blank_report(run):
    (run / "report.html").touch()
    return run / "report.html"


@contextmanager
def users_module(folder):
    """Make a user's module `theirs` importable from anywhere; reports of runs are empty."""
    (folder / "modules").mkdir()
    write_module(folder / "modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onsight.report.page.write_report", write_blank_report)
        patch.setenv("PYTHONPATH", str(folder / "modules"), prepend=os.pathsep)
        patch.syspath_prepend(str(folder / "modules"))
        yield


class Launched:
    """`python -m onsight train` with a temporary folder of its own."""

    started: ClassVar[list["Launched"]] = []

    def __init__(self, folder: Path, *words):
        self.temporary = folder / "temporary"
        self.temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "onsight", "train", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(self.temporary)},
        )
        self.started.append(self)

    def abandon(self):
        """End what a failed test has left running."""
        for number in self.ranks().values():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def wait_for(self, path, seconds=180):
        """Wait until the run has written a file."""
        limit = time.monotonic() + seconds
        while not path.exists():
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < limit
            time.sleep(0.02)

    def ranks(self):
        """The process of each running rank, found by its variables in /proc."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                lines = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                variables = dict(line.partition("=")[::2] for line in lines)
                ended = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                mine = variables.get("TMPDIR") == str(self.temporary)
                if mine and "ONSIGHT_STORE" in variables and not ended:
                    found[int(variables["RANK"])] = int(folder.name)
        return found

    def end(self, seconds=180):
        """(exit code, stdout, stderr); nothing may be left behind."""
        out, err = self.process.communicate(timeout=seconds)
        assert self.ranks() == {}
        left = [path.name for path in self.temporary.iterdir()]
        assert [name for name in left if not name.startswith("torchinductor_")] == []
        return self.process.returncode, out, err


def listening_beyond_loopback(processes):
    """Local addresses, in hexadecimal as in /proc/net, where the processes listen to others."""
    inodes = {os.readlink(link) for number in processes for link in _descriptors(number)}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            address, state, inode = words[1], words[3], words[9]
            if state == "0A" and f"socket:[{inode}]" in inodes:
                found.append(address)
    return [
        a for a in found if not a.startswith(("0100007F:", "00000000000000000000000001000000:"))
    ]


def _descriptors(number):
    return [path for path in Path(f"/proc/{number}/fd").iterdir() if path.is_symlink()]
