"""Scripts end with whoever explains them: by Ctrl-C, and even if that is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRAINS = """
import torch
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
while True:
    optimizer.zero_grad()
    net(torch.ones(4, 3)).sum().backward()
    optimizer.step()
"""
EXPLAINS = """
import signal
import sys
from pathlib import Path
from onsight_explain.process.processes import Processes
from onsight_explain.what_ifs.what_if import make_what_ifs

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it

def explain(*args, **settings):
    with Processes(Path(sys.argv[1]), [], 10**9, 60.0) as processes:
        processes.prepare(is_late=True)
        for changes in ({}, {"short_spin": True}):  # one that is forked, and a fresh one
            processes.start(make_what_ifs(changes), 0.05).trace()  # and is stopped
        processes.start(seconds=1e6)
        print("started", flush=True)
        sys.stdin.read()

from onsight_explain import cli
cli.explain = explain
cli.main([sys.argv[1]])
"""


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGKILL]
)
def test_nothing_is_left_running(tmp_path, number):
    """Neither what runs, nor what is stopped: a stopped process cannot look whether to end."""
    script = tmp_path / "train.py"
    script.write_text(TRAINS, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-c", EXPLAINS, str(script)],
        env=os.environ | {"ONSIGHT_TEST_FOLDER": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as explains:
        assert explains.stdout.readline() == b"started\n"
        assert len(running(tmp_path)) >= 5  # explain, two servers, and a script of each kind
        explains.send_signal(number)
        explains.stdin.close()
        said = explains.stderr.read().decode()
    assert explains.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    if number == signal.SIGINT:
        assert said.endswith("error: interrupted\n")
    until = time.monotonic() + 60
    while running(tmp_path):
        assert time.monotonic() < until, running(tmp_path)
        time.sleep(0.05)


def running(folder):
    """Processes that inherit this variable, with their states."""
    entry = f"ONSIGHT_TEST_FOLDER={folder}".encode()
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            entries = (process / "environ").read_bytes().split(b"\0")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if entry in entries and state != "Z" and int(process.name) != os.getpid():
            found[int(process.name)] = state
    return found
