"""What the tests of explanations share: few threads, known ceilings, and forked processes."""

import os
import sys
import time

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as on a busy machine; before torch loads

import pytest
import torch
from forks import ForkServer
from portable import THREADS

from onsight_explain import paired_timing
from onsight_explain.ceilings import Ceilings
from onsight_explain.diagnosis import explain
from onsight_explain.on_simulated_gpu import explain as on_simulated_gpu
from onsight_explain.process import processes

torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def threads_in_force():
    """Fail a test before which, or after which, torch computes with another number of threads."""
    assert torch.get_num_threads() == THREADS
    yield
    assert torch.get_num_threads() == THREADS


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch):
    """Explanations name the ceilings of the device, which take a second to measure."""
    ceilings = Ceilings({"fp32": 1e11, "bf16": 2e11}, copy_bytes_per_second=1e10, threads=1)
    monkeypatch.setattr(explain, "measure_ceilings", lambda *_: ceilings)


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch):
    """What else the machine does decides nothing in the tests."""
    monkeypatch.setattr(paired_timing, "is_busy", lambda: False)
    monkeypatch.setattr(explain, "is_busy", lambda: False)


@pytest.fixture
def long_sleeps(monkeypatch):
    """Let sleeps take 1,000 times as long by the clock: the speed of the machine hardly counts."""
    clock, sleep, slept = time.perf_counter, time.sleep, [0.0]

    def sleep_long(seconds):
        sleep(seconds)
        slept[0] += 999 * seconds

    monkeypatch.setattr(time, "sleep", sleep_long)
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + slept[0])


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory):
    """A process with torch loaded."""
    with ForkServer(tmp_path_factory.mktemp("forks") / "output.txt") as server:
        yield server


@pytest.fixture
def forked(request, monkeypatch):
    """Fork all processes of ours from one with torch loaded, see `forks.py`."""
    if sys.platform == "linux":  # elsewhere a process with torch loaded may not be forked
        server = request.getfixturevalue("fork_server")
        for module in (processes, on_simulated_gpu):
            monkeypatch.setattr(module, "SupervisedChild", server.start)
