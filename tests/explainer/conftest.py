"""Explanations start from a known machine: its ceilings, and no settings of threads."""

import os

import pytest

from onsight.explainer import explain_run as own
from onsight_explain import paired_timing
from onsight_explain.ceilings import Ceilings
from onsight_explain.threads import thread_variables_set_by_user


@pytest.fixture(autouse=True)
def no_thread_settings(monkeypatch):
    """Otherwise each run is also timed in a process without them."""
    for name in thread_variables_set_by_user(os.environ):
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch):
    """They take a second to measure."""
    ceilings = Ceilings({"fp32": 1e11, "bf16": 2e11}, copy_bytes_per_second=1e10, threads=1)
    monkeypatch.setattr(own, "measure_ceilings", lambda *_: ceilings)


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch):
    """What else the machine does decides nothing in the tests."""
    monkeypatch.setattr(paired_timing, "is_busy", lambda: False)
