"""A machine with known ceilings, no thread settings and no other load."""

import os

import pytest

from onsight.explainer import explain_run as own
from onsight_explain import paired_timing
from onsight_explain.ceilings import Ceilings
from onsight_explain.threads import thread_variables_set_by_user


@pytest.fixture(scope="module", autouse=True)
def no_thread_settings():
    """Remove thread settings; with them, each run would also be timed without."""
    with pytest.MonkeyPatch.context() as patch:
        for name in thread_variables_set_by_user(os.environ):
            patch.delenv(name)
        yield


@pytest.fixture(scope="module", autouse=True)
def known_ceilings():
    """Replace the measured ceilings, which take a second."""
    ceilings = Ceilings({"fp32": 1e11, "bf16": 2e11}, copy_bytes_per_second=1e10, threads=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "measure_ceilings", lambda *_: ceilings)
        yield


@pytest.fixture(scope="module", autouse=True)
def idle_machine():
    """Other load on the machine must not influence the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paired_timing, "is_busy", lambda: False)
        yield
