"""What iterating over a copy of a dataset without numbered items shows."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from onsight_explain import python_process
from onsight_explain.process import items
from onsight_explain.process.items import examine_items, examine_stream
from onsight_explain.process.observe import examine_loader
from onsight_explain.python_process import runnable_seconds
from onsight_explain.tracing.sites import ObjectOrigin


class Numbers(IterableDataset):
    def __init__(self, seconds=0.0, batch=None, asks=False):
        self.seconds, self.batch, self.asks = seconds, batch, asks
        self.passes = 0

    def __len__(self):
        return 50

    def __iter__(self):
        self.passes += 1
        worker = get_worker_info() if self.asks else None
        for number in range(worker.id if worker else 0, 50, worker.num_workers if worker else 1):
            time.sleep(self.seconds)
            shape = (3, 2, 2) if self.batch is None else (self.batch, 3, 2, 2)
            yield torch.full(shape, float(number)), number


class Shards(Numbers):
    """Like a WebDataset: a pipeline whose first stage lists files."""

    class First:
        urls = ("a.tar", "b.tar", "c.tar")

    pipeline = (First(),)


def test_an_item_is_timed_on_a_copy(long_sleeps):
    dataset = Numbers(seconds=0.002)
    item = examine_stream(dataset).item
    assert item.seconds >= 2
    assert item.waiting_share > 0.5
    assert item.item_bytes == 3 * 2 * 2 * 4
    assert dataset.passes == 0


class Squares(Dataset):
    """Numbers, with the number of torch's threads while each was made."""

    def __init__(self, work=lambda: None):
        self.work, self.threads = work, set()

    def __len__(self):
        return 300

    def __getitem__(self, index):
        self.threads.add(torch.get_num_threads())
        self.work()
        return torch.tensor(float(index**2)), index


def test_items_are_made_by_one_thread_as_in_a_worker():
    dataset, threads = Squares(), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert examine_items(dataset)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert dataset.threads == {1}


@pytest.mark.skipif(
    not python_process._SCHEDULING.exists(), reason="only Linux tells waits for a core"
)
def test_a_core_shared_with_other_work_is_no_disk(monkeypatch):
    """Three processes take most of the core; the item sleeps once, but only for a moment."""
    monkeypatch.setattr(items, "_SECONDS", 0.5)

    def work():
        time.sleep(1e-5)
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass

    cores = os.sched_getaffinity(0)
    core = {min(cores)}
    code = f"import os; os.sched_setaffinity(0, {core}); print(flush=True)\nwhile True: pass"
    command = [sys.executable, "-c", code]
    hogs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for hog in hogs:
            hog.stdout.readline()
        os.sched_setaffinity(0, core)
        before = runnable_seconds() - time.thread_time()
        item = examine_items(Squares(work))
        assert runnable_seconds() - time.thread_time() > before  # they did take it
    finally:
        os.sched_setaffinity(0, cores)
        for hog in hogs:
            hog.kill()
            hog.communicate()
    assert item.waiting_share < 0.5


def test_a_batch_counts_as_many_items(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    stream = examine_stream(Numbers(seconds=0.004, batch=4))
    assert stream.item.seconds == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("dataset", "most"),
    [(Numbers(), 1), (Numbers(asks=True), None), (Shards(asks=True), 3)],
    ids=["all read the same", "any number", "shards"],
)
def test_the_workers_that_can_share_it(dataset, most):
    stream = examine_stream(dataset)
    assert stream.most_workers == most
    told = " ".join(stream.remarks(8, 0))
    assert ("get_worker_info" in told) == (most == 1)
    assert ("3 shards" in told) == (most == 3)
    assert get_worker_info() is None


def test_workers_that_would_all_read_the_same_are_reported():
    told = examine_stream(Numbers()).remarks(8, workers=4)
    assert "every item occurs 4 times" in " ".join(told)


class Blocked(Numbers):
    """Waits for something."""

    release = threading.Event()

    def __iter__(self):
        self.release.wait()
        return iter(())


@pytest.fixture
def blocked():
    yield Blocked()
    Blocked.release.set()
    while get_worker_info():  # the thread that was left alone puts it back
        time.sleep(0.01)


def test_a_stream_that_never_yields_is_given_up(monkeypatch, blocked):
    monkeypatch.setattr(items, "_STREAM_TIMEOUT_SECONDS", 0.05)
    stream = examine_stream(blocked)
    assert stream.item is None
    assert stream.most_workers is None
    assert "could not be iterated" in " ".join(stream.remarks(8, 0))


def test_the_facts_of_a_loader_over_a_stream():
    loader = DataLoader(Numbers(), batch_size=8)
    facts, item, remarks = examine_loader(loader, ObjectOrigin(), with_items=True)
    assert (facts.batch_size, facts.items, facts.has_items, facts.most_workers) == (8, 50, False, 1)
    assert item is not None
    assert remarks
    facts, item, remarks = examine_loader(loader, ObjectOrigin(), with_items=False)
    assert (facts.most_workers, item, remarks) == (1, None, [])


def test_a_loader_around_batches_of_numbers_has_their_size_and_order():
    first = DataLoader(list(range(64)), batch_size=16, shuffle=True)
    copied = DataLoader(first.dataset, batch_sampler=first.batch_sampler)
    facts, _, _ = examine_loader(copied, ObjectOrigin(), with_items=False)
    assert (facts.batch_size, facts.is_shuffled, facts.items) == (16, True, 64)


class StandIn:
    num_workers, persistent_workers = 2, False


class LikeFastai:
    """Says what it is in fastai's words."""

    bs, pin_memory, shuffle, n, fake_l = 16, False, True, 3, StandIn()
    dataset = ("a", "b", "c")

    def do_item(self, index):
        return torch.full((2,), float(index))


def test_the_facts_of_a_loader_of_fastai():
    facts, item, _ = examine_loader(LikeFastai(), ObjectOrigin(maker="fastai"), with_items=True)
    assert (facts.batch_size, facts.workers, facts.is_shuffled, facts.items) == (16, 2, True, 3)
    assert not facts.has_items
    assert item.item_bytes == 8
