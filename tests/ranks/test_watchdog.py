"""Which ranks are lost or stuck: with made-up heartbeats and clocks, then over a real store."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from onsight.ranks import launch, watchdog
from onsight.ranks.ddp import WholeBatchNorm
from onsight.ranks.meeting import RankInfo
from onsight.ranks.watchdog import (
    LOST_SECONDS,
    STUCK_SECONDS,
    Heartbeats,
    LauncherWatchdog,
    Watchdog,
)
from onsight.ranks.world import Ranks, World, _is_broken_connection

SOON = 20.0  # seconds that a test waits at most


class Beats:
    """A store that holds only heartbeats."""

    def __init__(self):
        self.values = {}

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.values[key].encode()


def look(timeline, seconds, size=2):
    """Heartbeats after so many seconds, each beat given by timeline(rank, second), or None."""
    heartbeats, store = Heartbeats(size, 0.0), Beats()
    for now in range(int(seconds) + 1):
        for rank in range(size):
            beat = timeline(rank, now)
            if beat is not None:
                store.values[f"beat/{rank}"] = beat
        heartbeats.read(store, float(now))
    return heartbeats


def working(second, until=10**9, paused=0, moves=0):
    """One beat per second, and one step per second up to some time."""
    return f"{second} {min(second, until)} {moves} {paused} in epoch 1, step {min(second, until)}"


def test_ranks_at_work_are_neither_silent_nor_stuck():
    heartbeats = look(lambda rank, second: working(second), 500)
    assert heartbeats.silent(500.0) == []
    assert heartbeats.stuck(500.0) == []


def test_a_rank_without_a_beat_for_too_long_is_silent():
    def beats(rank, second):
        return working(second) if rank == 0 or second <= 100 else None

    assert look(beats, 100 + LOST_SECONDS).silent(100 + LOST_SECONDS) == []
    assert look(beats, 101 + LOST_SECONDS).silent(101 + LOST_SECONDS) == [1]


def test_a_rank_that_beats_but_keeps_the_others_waiting_is_stuck():
    def beats(rank, second):
        return working(second, until=100 if rank == 1 else 101)

    assert look(beats, 100 + STUCK_SECONDS).stuck(100 + STUCK_SECONDS) == []
    late = look(beats, 102 + STUCK_SECONDS)
    assert late.stuck(102 + STUCK_SECONDS) == [1]
    assert late.silent(102 + STUCK_SECONDS) == []


def test_a_rank_that_moves_is_slow_but_not_stuck():
    def beats(rank, second):
        moves = 0 if rank == 0 else min(second, 400) // 40  # a batch each 40 s, the last at 400 s
        return working(second, until=100 if rank == 1 else 101, moves=moves)

    assert look(beats, 400 + STUCK_SECONDS - 1).stuck(400 + STUCK_SECONDS - 1) == []
    assert look(beats, 401 + STUCK_SECONDS).stuck(401 + STUCK_SECONDS) == [1]


def test_what_a_rank_did_last_is_kept():
    heartbeats = look(lambda rank, second: working(second), 7)
    assert [seen.activity for seen in heartbeats.last_seen] == ["in epoch 1, step 7"] * 2


def test_all_ranks_that_are_behind_are_named():
    def beats(rank, second):
        return working(second, until=101 if rank == 2 else 100)

    assert look(beats, 300, size=4).stuck(300.0) == [0, 1, 3]


def test_steps_that_take_long_everywhere_are_not_stuck():
    assert look(lambda rank, second: working(second, until=100), 1000).stuck(1000.0) == []


def test_no_rank_is_stuck_while_one_has_paused_the_watchdog():
    def beats(rank, second):
        return working(second, until=100 if rank == 1 else 101, paused=int(rank == 1))

    assert look(beats, 1000).stuck(1000.0) == []


def test_a_rank_has_time_to_come_along_after_its_pause():
    def beats(rank, second):
        paused = int(rank == 1 and 100 <= second < 300)
        return working(second, until=100 if rank == 1 else 101, paused=paused)

    # The other has waited for it since second 101; it moved until its pause was over.
    assert look(beats, 299 + STUCK_SECONDS).stuck(299 + STUCK_SECONDS - 1) == []
    assert look(beats, 301 + STUCK_SECONDS).stuck(301 + STUCK_SECONDS) == [1]


def test_a_rank_that_left_in_good_order_is_neither_silent_nor_stuck():
    def beats(rank, second):
        return "left" if rank == 1 and second > 50 else working(second)

    heartbeats = look(beats, 500)
    assert heartbeats.silent(500.0) == []
    assert heartbeats.stuck(500.0) == []


def test_a_rank_that_has_not_joined_yet_is_not_silent():
    heartbeats = look(lambda rank, second: working(second, until=0) if rank == 0 else None, 500)
    assert heartbeats.silent(500.0) == []
    assert heartbeats.stuck(500.0) == []


def test_a_process_that_was_suspended_itself_blames_no_rank():
    heartbeats, store = look(lambda rank, second: working(second), 100), Beats()
    store.values = {"beat/0": working(100), "beat/1": working(100, until=99)}
    heartbeats.read(store, 1100.0)  # the whole job was stopped for a while
    assert heartbeats.silent(1100.0) == []
    assert heartbeats.stuck(1100.0) == []
    for second in range(1101, 1102 + int(LOST_SECONDS)):
        store.values["beat/0"] = working(second)
        heartbeats.read(store, float(second))
    assert heartbeats.silent(1101.0 + LOST_SECONDS) == [1]


class Counting(World):
    """A world that counts how often its ranks would synchronize."""

    met = 0

    def count_sync(self):
        self.met += 1


def test_batch_norm_counts_its_synchronization_in_training_only(monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: None)
    world = Counting()
    with WholeBatchNorm(world):
        F.batch_norm(torch.randn(4, 3, 2, 2), torch.zeros(3), torch.ones(3), training=True)
        F.batch_norm(torch.randn(4, 3, 2, 2), torch.zeros(3), torch.ones(3), training=False)
    assert world.met == 1


@pytest.mark.parametrize(
    ("message", "broken"),
    [
        ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1", True),
        ("NCCL communicator was aborted on rank 1", True),
        ("the skip connection has 3 channels, not 4", False),
    ],
)
def test_only_a_failed_collective_means_that_another_rank_is_lost(message, broken):
    assert _is_broken_connection(RuntimeError(message)) == broken


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def hasty(monkeypatch):
    """Much shorter waits; returns the reasons for which the job was ended."""
    monkeypatch.setattr(watchdog, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(watchdog, "LOST_SECONDS", 0.5)
    monkeypatch.setattr(watchdog, "STUCK_SECONDS", 1.0)
    monkeypatch.setattr(watchdog.Heartbeats.silent, "__defaults__", (0.5,))
    monkeypatch.setattr(watchdog.Watchdog.find_lost, "__defaults__", (SOON,))
    # Here all ranks are one process, that of the tests.
    monkeypatch.setattr(watchdog.Watchdog, "_kill_local", lambda self, ranks: None)
    reasons = []
    monkeypatch.setattr(watchdog, "end_job", reasons.append)
    return reasons


def until(condition):
    limit = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_rank_that_hangs_is_named_as_keeping_the_others_waiting(store, hasty):
    ranks = [Watchdog(store, rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.paused = False
        rank.syncs = 5
    time.sleep(0.2)
    assert hasty == []
    ranks[0].syncs = 6
    until(lambda: hasty)
    assert hasty[0].startswith(f"rank 1 (process {os.getpid()} on ")
    assert "has kept the others waiting" in hasty[0]
    for rank in ranks:
        rank.leave()


def test_a_rank_that_is_gone_is_named(store, hasty):
    first, second = (Watchdog(store, rank, 2) for rank in range(2))
    until(lambda: all(seen.beat for seen in first.heartbeats.last_seen))
    second.stopped.set()  # no more beats, and no notice of leaving
    assert first.find_lost() == [1]
    until(lambda: hasty)
    assert hasty[0].startswith("rank 1 (process ")
    assert "has not been heard from" in hasty[0]
    first.leave()


def test_a_rank_is_described_with_its_machine_and_what_it_did_last(store, hasty):
    first, second = (Watchdog(store, rank, 2) for rank in range(2))
    second.activity = "validating after epoch 3, batch 2"
    until(lambda: first.heartbeats.last_seen[1].activity.startswith("validating"))
    place = f"process {os.getpid()} on {socket.gethostname()}"
    assert first.describe(1) == f"rank 1 ({place}, last seen {second.activity})"
    for rank in (first, second):
        rank.leave()


def test_the_launcher_describes_a_rank_by_its_very_last_heartbeat(store, hasty):
    launcher = LauncherWatchdog(store, 2)
    launcher.stop()  # it reads none from now on
    store.set("place/1", "process 7 on gpu03")
    store.set("beat/1", "3 8 9 0 in epoch 1, step 5")
    assert launcher.describe(1) == "rank 1 (process 7 on gpu03, last seen in epoch 1, step 5)"


@pytest.mark.parametrize(("node", "launched"), [(0, False), (1, False), (0, True)])
def test_a_stopped_rank_of_this_machine_is_killed_unless_the_launcher_does_it(
    store, monkeypatch, node, launched
):
    killed = []
    monkeypatch.setattr(watchdog, "kill", lambda store, rank: killed.append(rank))
    monkeypatch.delenv("ONSIGHT_STORE", raising=False)
    if launched:
        monkeypatch.setenv("ONSIGHT_STORE", "127.0.0.1:1")
    first, second = Watchdog(store, 0, 2), Watchdog(store, 1, 2, node)
    first._kill_local([1])
    assert killed == ([1] if node == 0 and not launched else [])
    for rank in (first, second):
        rank.leave()


def test_a_store_that_does_not_answer_ends_the_job(store, hasty, monkeypatch):
    first = Watchdog(store, 0, 1)
    until(lambda: first.first_rank)
    blocked = threading.Event()
    monkeypatch.setattr(first.heartbeats, "read", lambda *arguments: blocked.wait(SOON))
    until(lambda: hasty)
    assert "the process that coordinates the ranks, probably rank 0 (process " in hasty[0]
    first.stopped.set()
    blocked.set()


def test_a_rank_that_leaves_is_not_reported(store, hasty):
    first, second = (Watchdog(store, rank, 2) for rank in range(2))
    until(lambda: all(seen.beat for seen in first.heartbeats.last_seen))
    second.leave()
    time.sleep(1.0)
    assert hasty == []
    first.leave()


def test_a_rank_that_stops_within_its_first_second_is_found(store, hasty, monkeypatch):
    first = Watchdog(store, 0, 2)
    monkeypatch.setattr(watchdog.Watchdog, "_run", lambda self: None)
    second = Watchdog(store, 1, 2)
    assert first.find_lost() == [1]
    second.stopped.set()
    first.leave()


def test_the_launcher_receives_the_heartbeats_of_its_ranks(hasty, monkeypatch, tmp_path):
    watchdogs = []

    def make(*arguments):
        watchdogs.append(LauncherWatchdog(*arguments))
        return watchdogs[0]

    monkeypatch.setattr(launch, "LauncherWatchdog", make)
    with launch._host_store(1):
        world = Ranks(RankInfo(0, 1, 0, 1, 0, "torchrun"), torch.device("cpu"))
        with world.joined():
            until(lambda: watchdogs[0].heartbeats.last_seen[0].beat)


@pytest.mark.parametrize("beat", ["1 5 9 0 in epoch 1, step 5", "0 0 0 1 starting"])
def test_the_launcher_kills_a_process_that_is_stopped(store, hasty, beat):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    store.set("process/0", str(sleeper.pid))
    store.set("beat/0", beat)
    launcher = LauncherWatchdog(store, 1)
    assert sleeper.wait(SOON) == -signal.SIGKILL
    launcher.stop()


def test_the_launcher_kills_a_process_that_keeps_the_others_waiting(store, hasty):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    first, second = (Watchdog(store, rank, 2) for rank in range(2))
    first.paused = second.paused = False
    first.syncs = 1
    store.set("process/1", str(sleeper.pid))
    launcher = LauncherWatchdog(store, 2)
    assert sleeper.wait(SOON) == -signal.SIGKILL
    launcher.stop()
    for rank in (first, second):
        rank.leave()
