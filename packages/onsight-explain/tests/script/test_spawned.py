"""Training in processes that a script starts itself: one of them is watched."""

import sys
import textwrap

import pytest

from onsight_explain.json_dataclasses import from_json
from onsight_explain.process.processes import Processes
from onsight_explain.tracing.timeline import Timeline

TOGETHER = """
import socket
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import get_context
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

def train(rank, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    net = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    data = TensorDataset(torch.ones(400, 3), torch.zeros(400).long())
    while True:
        for images, labels in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()

with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
processes = [get_context("fork").Process(target=train, args=(rank, port)) for rank in (0, 1)]
for process in processes: process.start()
for process in processes: process.join()
open("result.txt", "w").write("saved")
"""
BESIDE_A_HELPER = """
import torch
from torch import nn
from torch.multiprocessing import get_context

get_context("fork").Process(target=print, daemon=True).start()
net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
while True:
    optimizer.zero_grad()
    net(torch.ones(4, 3)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def processes(tmp_path, forked, monkeypatch):
    """A function that starts the processes of a script with this text, in its own folder."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    monkeypatch.chdir(tmp_path)
    opened = []

    def make(text):
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(text), encoding="utf-8")
        opened.append(Processes(script, [], 10**9, 60.0).__enter__())
        opened[0].prepare(is_late=True)
        return opened[0]

    yield make
    opened[0].__exit__(None, None, None)


def test_one_of_the_processes_reports_and_all_end_before_the_script_saves(processes, tmp_path):
    path = tmp_path / "timeline.json"
    trace = processes(TOGETHER).start(seconds=0.5, is_full=True, timeline=path).trace()
    assert trace.images == 4 * trace.steps > 0
    assert (trace.loader.items, trace.optimizer.name) == (400, "SGD")
    assert "2 processes train together; figures are for one of them" in trace.remarks
    timeline = from_json(Timeline, path.read_bytes())
    for name, seconds in trace.phases.items():
        drawn = sum(one.end - one.begin for one in timeline.slices if one.phase == name)
        assert drawn / 1e9 == pytest.approx(seconds, abs=0.01 * trace.seconds)
    assert not (tmp_path / "result.txt").exists()


def test_a_process_that_does_not_train_changes_nothing(processes):
    process = processes(BESIDE_A_HELPER).start(seconds=0.1)
    for trace in (process.trace(), process.measure(0.1)):
        assert trace.images == 4 * trace.steps > 0
        assert not process.is_over  # it can go on
    assert trace.remarks == []
