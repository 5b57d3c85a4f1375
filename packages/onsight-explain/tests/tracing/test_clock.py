"""Every moment belongs to one phase: checked with a fake clock."""

import threading

import pytest

from onsight_explain.tracing import clock as clocks
from onsight_explain.tracing.clock import PHASES, PhaseClock


@pytest.fixture
def now(monkeypatch):
    """A list whose only number is the time."""
    moment = [0.0]
    monkeypatch.setattr(clocks, "perf_counter", lambda: moment[0])
    return moment


def spent(clock):
    return {name: seconds for name, seconds in clock.read().items() if seconds}


def test_the_time_of_a_nested_phase_is_not_counted_for_the_outer_one(now):
    clock = PhaseClock()
    now[0] = 1
    outer = clock.enter("forward")
    now[0] = 3
    inner = clock.enter("sync")
    now[0] = 7
    clock.leave(inner)
    now[0] = 8
    clock.leave(outer)
    now[0] = 10
    assert spent(clock) == {"other": 3, "forward": 3, "sync": 4}
    assert sum(clock.read().values()) == 10


def test_what_happens_while_a_batch_is_made_is_waiting_for_data(now):
    clock = PhaseClock()
    with clock.within("data"):
        now[0] = 1
        with clock.within("augment"):
            now[0] = 3
    assert spent(clock) == {"data": 3}


def test_an_error_leaves_no_phase_open(now):
    clock = PhaseClock()
    outer = clock.enter("forward")
    clock.enter("copy")  # never left
    now[0] = 1
    clock.leave(outer)
    now[0] = 3
    assert clock.phase == "other"
    assert spent(clock) == {"copy": 1, "other": 2}


def test_other_threads_are_not_counted(now):
    clock = PhaseClock()

    def work():
        with clock.within("copy"):
            now[0] = 5

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert spent(clock) == {"other": 5}


def test_every_change_is_reported_once(now):
    heard = []
    clock = PhaseClock(heard.append)
    with clock.within("forward"), clock.within("forward"), clock.within("sync"):
        pass
    assert heard == ["forward", "sync", "forward", "other"]


def test_reading_loses_no_time(now):
    clock = PhaseClock()
    for moment in range(1, 5):
        now[0] = moment
        clock.read()
    assert clock.read() == dict.fromkeys(PHASES, 0.0) | {"other": 4}
