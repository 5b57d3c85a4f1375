"""Threads spin briefly only where other work leaves too few cores; planted loads are the oracle."""

import os
import subprocess
import sys
import time

import pytest

from onsight_explain import threads
from onsight_explain.threads import SHORT_SPIN, SPIN_VARIABLE, choose_spinning


@pytest.fixture
def fresh(monkeypatch):
    """A process that has not loaded torch and in which nothing was chosen, with two cores."""
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.delenv(SPIN_VARIABLE, raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    monkeypatch.setattr(threads.time, "sleep", lambda seconds: None)
    return monkeypatch


def chosen(monkeypatch, tmp_path, running, cores):
    """What is set where so many threads run, this process's own among them, on so many cores."""
    load = tmp_path / "loadavg"
    load.write_text(f"3.14 2.72 1.62 {running}/345 6789\n")
    monkeypatch.setattr(threads, "_LOAD", load)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    choose_spinning()
    return os.environ.get(SPIN_VARIABLE)


@pytest.mark.parametrize(
    ("running", "cores", "expected"),
    [(1, 2, None), (2, 2, SHORT_SPIN), (3, 2, SHORT_SPIN), (60, 64, None), (64, 64, SHORT_SPIN)],
)
def test_other_work_that_needs_the_cores_is_noticed(fresh, tmp_path, running, cores, expected):
    assert chosen(fresh, tmp_path, running, cores) == expected


@pytest.mark.parametrize("variable", [SPIN_VARIABLE, "OMP_WAIT_POLICY"])
def test_what_the_user_has_chosen_stays(fresh, tmp_path, variable):
    fresh.setenv(variable, "7")
    assert chosen(fresh, tmp_path, 9, 2) == ("7" if variable == SPIN_VARIABLE else None)


def test_nothing_is_set_where_it_would_come_too_late_or_nothing_is_known(fresh, tmp_path):
    fresh.setattr(threads, "_LOAD", tmp_path / "nowhere")
    choose_spinning()
    assert SPIN_VARIABLE not in os.environ
    fresh.setitem(sys.modules, "torch", None)
    assert chosen(fresh, tmp_path, 9, 2) is None


@pytest.mark.skipif(not threads._LOAD.exists(), reason="only Linux reports what is running")
def test_a_process_that_runs_is_counted():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until = time.monotonic() + 30
        while threads._count_other_threads() < 1:
            assert time.monotonic() < until
    finally:
        process.kill()
        process.wait()
