"""Ray replaced at its border; what runs on real Ray is in soak/test_ray.py."""

import os
import sys

import pytest
from fake_ray import make_fake_ray

from onsight.report import page
from onsight_explain import threads


@pytest.fixture(autouse=True)
def _no_limit_of_cores(monkeypatch):
    """A rank is a process of its own, which may limit its cores for good; these tests are not."""
    monkeypatch.setattr(threads, "_core_limit", [])


@pytest.fixture(autouse=True)
def _blank_report(monkeypatch):
    """The figures of a report take most of a small run's time."""

    def write_report(run):
        (run / "report.html").touch()
        return run / "report.html"

    monkeypatch.setattr(page, "write_report", write_report)


@pytest.fixture
def fake_ray(monkeypatch, tmp_path):
    """The module ray, which runs everything here; the environment is restored."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "no cluster runs here"))
    modules = make_fake_ray()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules["ray"]
