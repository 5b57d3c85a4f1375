"""Ranks that train together: each is watched, and the planted slow one is named."""

import sys
import textwrap

import pytest

from onsight.explainer.script.processes import Processes
from onsight.explainer.script.ranks import rank_variables
from onsight.explainer.script.slowest import cause_of_ranks, slowest
from onsight.explainer.script.trace import RankFacts, Trace
from onsight.explainer.tracing.clock import PHASES
from onsight.explainer.tracing.timeline import Timeline

ITEM = 0.01  # seconds, planted in the data set of rank 1
DDP = f"""
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 400
    def __getitem__(self, index):
        time.sleep({ITEM} if dist.get_rank() == 1 else 0)
        return torch.full((3,), float(index % 5)), index % 2

def train(rank, world, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{{port}}", rank=rank, world_size=world)
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(1000):
        for images, labels in DataLoader(Slow(), batch_size=4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
            dist.all_reduce(torch.zeros(1))
"""
UNDER_TORCHRUN = DDP + 'train(int(os.environ["RANK"]), 2, os.environ["MASTER_PORT"])\n'
FORKING = (
    DDP
    + """
import socket
from torch.multiprocessing import get_context
with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
processes = [get_context("fork").Process(target=train, args=(rank, 2, port)) for rank in (0, 1)]
for process in processes: process.start()
for process in processes: process.join()
open("result.txt", "w").write("saved")
"""
)


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


def test_the_slow_rank_is_named_and_the_others_wait_in_communication(script, tmp_path):
    script.write_text(textwrap.dedent(UNDER_TORCHRUN), encoding="utf-8")
    lines = tmp_path / "timelines"
    lines.mkdir()
    with Processes(script, [], 2000, 60.0, ranks=2) as processes:
        processes.prepare(is_late=True)
        process = processes.start((), 0.5, timelines=lines)
        trace = process.trace()
        again = process.measure(0.3)  # stopped at the same step, so that both can go on
    check(trace)
    check(again)
    for rank in (0, 1):
        timeline = Timeline.model_validate_json((lines / f"{rank}.json").read_bytes())
        add_up(timeline, trace.ranks[rank])


def check(trace):
    assert [one.rank for one in trace.ranks] == [0, 1]
    late = slowest(trace.ranks)
    assert (late.rank, late.phase) == (1, "data")
    assert late.phase_seconds > 0.9 * 4 * ITEM
    fast, slow = trace.ranks
    assert fast.per_step("communication") > 0.8 * late.seconds
    assert fast.per_step("data") < slow.per_step("data") / 2
    assert trace.images_per_second == sum(one.images / one.seconds for one in trace.ranks)
    for one in trace.ranks:
        assert sum(one.phases.values()) == pytest.approx(one.seconds, rel=1e-2)


def add_up(timeline, facts):
    for name, seconds in facts.phases.items():
        drawn = sum(one.end - one.begin for one in timeline.slices if one.phase == name)
        assert drawn / 1e9 == pytest.approx(seconds, abs=0.01 * facts.seconds)


def test_processes_that_a_script_starts_are_watched_and_it_ends_before_it_saves(script, tmp_path):
    script.write_text(textwrap.dedent(FORKING), encoding="utf-8")
    with Processes(script, [], 2000, 60.0) as processes:
        processes.prepare(is_late=True)
        check(processes.run(seconds=0.5))
    assert not (tmp_path / "result.txt").exists()


def test_ranks_get_what_torchrun_gives_them(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    first, second = rank_variables(2)
    assert (first["RANK"], second["LOCAL_RANK"], second["WORLD_SIZE"]) == ("0", "1", "2")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert (first["MASTER_ADDR"], first["OMP_NUM_THREADS"]) == ("127.0.0.1", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "OMP_NUM_THREADS" not in rank_variables(2)[0]
    assert rank_variables(1) == [{}]


def facts(rank, **phases):
    spent = dict.fromkeys(PHASES, 0.0) | phases
    return RankFacts(rank=rank, seconds=sum(spent.values()), steps=1, images=8, phases=spent)


def test_the_slowest_is_known_by_its_work_and_not_by_its_waiting():
    ranks = [
        facts(0, data=1.0, forward=2.0, communication=3.0),
        facts(1, data=3.9, forward=2.1),
        facts(2, data=1.2, forward=1.8, communication=3.0),
    ]
    late = slowest(ranks)
    assert (late.rank, late.phase) == (1, "data")
    assert (late.seconds, late.phase_seconds, late.waiting_seconds) == pytest.approx((3, 2.8, 3))
    trace = Trace(ended="window", startup_seconds=0.0, world=3, ranks=ranks)
    assert cause_of_ranks(trace).name == "slow-rank"


def test_equal_ranks_that_talk_much_are_held_back_by_communication():
    ranks = [facts(rank, forward=1.0, communication=1.0 + rank / 100) for rank in range(2)]
    trace = Trace(ended="window", startup_seconds=0.0, world=2, ranks=ranks)
    trace.seconds, trace.phases = 2.0, ranks[0].phases
    assert slowest(ranks) is None
    assert cause_of_ranks(trace).name == "communication"
    trace.phases = facts(0, forward=2.0).phases
    assert cause_of_ranks(trace) is None
