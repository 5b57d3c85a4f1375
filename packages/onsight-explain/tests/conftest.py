"""What the tests of explanations share: few threads, and known ceilings."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as on a busy machine; before torch loads

import pytest
import torch

from onsight_explain import paired_timing
from onsight_explain.ceilings import Ceilings
from onsight_explain.diagnosis import explain

torch.set_num_threads(1)


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
