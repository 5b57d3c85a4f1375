"""Threads that compute leave the processor to the one that answers."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from onsight.serve.batcher import yield_to_clients


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_a_thread_and_those_it_starts_yield_and_others_do_not():
    before = _niceness()
    with ThreadPoolExecutor(1, "yields", yield_to_clients) as pool:
        assert pool.submit(_niceness).result() > before
        assert pool.submit(_of_a_child).result() > before
    assert _niceness() == before


def _of_a_child() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_niceness).result()
