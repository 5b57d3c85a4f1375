"""A fake Ray. Tests on real Ray are in soak/test_ray.py."""

import os
import sys

import pytest
from fake_ray import make_fake_ray

from onsight_explain import threads


@pytest.fixture(autouse=True)
def _no_core_limit(monkeypatch):
    """Undo the core limit of ranks, which is permanent in a rank's own process, after each test."""
    monkeypatch.setattr(threads, "_core_limit", [])


@pytest.fixture
def fake_ray(monkeypatch, tmp_path):
    """A fake module ray that runs everything in this process; the environment is restored."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "no cluster runs here"))
    modules = make_fake_ray()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules["ray"]
