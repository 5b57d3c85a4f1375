"""Ranks that are started after others in the same store meet each other, not what those left."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from onsight.ranks import meeting as meet
from onsight.ranks.meeting import RankInfo


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def info(rank, size):
    return RankInfo(rank, size, rank, size, 0, "torchrun")


def start(store, size, order):
    """The parts of the store that so many ranks find, begun in this order."""
    parts = {}
    with ThreadPoolExecutor(size) as threads:
        for rank in order:
            found = threads.submit(meet._fresh_part, store.clone(), info(rank, size))
            parts[rank] = found
    return [parts[rank].result(20) for rank in range(size)]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_each_start_has_a_part_of_its_own(store, order):
    seen = []
    for size in (3, 2, 3):  # a rank is lost, and comes back
        parts = start(store, size, [rank for rank in order if rank < size])
        assert not parts[0].check(["mark"])
        parts[-1].set("mark", str(len(seen)))
        assert [part.get("mark") for part in parts] == [str(len(seen)).encode()] * size
        seen.append(parts[0])
    assert [part.get("mark") for part in seen] == [b"0", b"1", b"2"]


def test_a_rank_that_another_start_has_left_is_not_waited_for(store):
    store.set("onsight/name/1", "of a former start")
    first = threading.Thread(target=meet._fresh_part, args=(store.clone(), info(0, 2)), daemon=True)
    first.start()
    first.join(0.5)
    assert first.is_alive()  # it told the former rank where to go, but that one does not come
    meet._fresh_part(store, info(1, 2))
    first.join(20)
    assert not first.is_alive()


def test_all_ranks_have_what_the_first_says(store):
    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(meet.broadcast, store.clone(), info(1, 2), "key", lambda: "mine")
        first = threads.submit(meet.broadcast, store.clone(), info(0, 2), "key", lambda: "first")
        assert (first.result(20), late.result(20)) == ("first", "first")
