"""Explanations name the ceilings of the device, which take a second to measure."""

import pytest

from onsight.explainer.own import explain as own
from onsight_explain.ceilings import Ceilings


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch):
    ceilings = Ceilings({"fp32": 1e11, "bf16": 2e11}, copy_bytes_per_second=1e10, threads=1)
    monkeypatch.setattr(own, "measure_ceilings", lambda *_: ceilings)
