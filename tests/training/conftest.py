"""Runs in these tests leave a blank report: its figures take most of a small run's time."""

import pytest

from onsight.report import page


@pytest.fixture(autouse=True)
def blank_report(monkeypatch):
    """Fixtures of a wider scope, such as `trained`, write the real one."""

    def write_report(run):
        (run / "report.html").touch()
        return run / "report.html"

    monkeypatch.setattr(page, "write_report", write_report)


@pytest.fixture(scope="session")
def backbone(shared_bars, train_once):
    """A run of a network from timm that has learned something."""
    settings = {"model": "test_resnet", "image_size": 16, "threads": 1, "precision": "fp32"}
    return train_once("backbone", shared_bars, epochs=2, batch_size=16, **settings)
