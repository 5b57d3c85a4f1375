"""Small data sets that tests share."""

import os
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as on a busy machine; before torch loads

import numpy as np
import pytest
import torch
from PIL import Image

torch.set_num_threads(1)  # tiny nets gain nothing from two, and a busy machine takes its toll


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """No test touches the user's cache."""
    monkeypatch.setenv("ONSIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))


def shape_picture(kind: str, rng: np.random.Generator, side: int = 12) -> np.ndarray:
    """A noisy picture of a bar: 'across' or 'down', learnable in a moment."""
    pixels = rng.integers(0, 80, (side, side), np.uint8)
    place = int(rng.integers(2, side - 2))
    if kind == "across":
        pixels[place] = 255
    else:
        pixels[:, place] = 255
    return pixels


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    """Two classes of 60 grey PNGs each, without a split."""
    rng = np.random.default_rng(1)
    for kind in ("across", "down"):
        folder = tmp_path / "bars" / kind
        folder.mkdir(parents=True)
        for number in range(60):
            Image.fromarray(shape_picture(kind, rng)).save(folder / f"{number:03d}.png")
    return tmp_path / "bars"
