"""An empty memory filesystem, and tries without pauses."""

import fsspec
import pytest

from onsight.data.shards import retry


@pytest.fixture
def memory():
    """fsspec's memory filesystem, empty before and after."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


@pytest.fixture
def no_pauses(monkeypatch):
    """Tries follow each other at once."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
