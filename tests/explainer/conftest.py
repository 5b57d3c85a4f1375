"""Explanations name the ceilings of the device, which take a second to measure."""

import pytest

from onsight.explainer.own import explain as own
from onsight.explainer.script import explain as script
from onsight.hardware.ceilings import Ceilings


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch):
    ceilings = Ceilings({"fp32": 1e11, "bf16": 2e11}, copy_bytes_per_second=1e10, threads=1)
    for module in (own, script):
        monkeypatch.setattr(module, "measure_ceilings", lambda *_: ceilings)
