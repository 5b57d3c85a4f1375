"""Images of bars: the small data set that most tests train on."""

from pathlib import Path

import numpy as np
from PIL import Image


def shape_image(kind: str, rng: np.random.Generator, side: int = 12) -> np.ndarray:
    """A noisy image of a bar: 'across' or 'down', learnable in a moment."""
    pixels = rng.integers(0, 80, (side, side), np.uint8)
    place = int(rng.integers(2, side - 2))
    if kind == "across":
        pixels[place] = 255
    else:
        pixels[:, place] = 255
    return pixels


def make_bars(folder: Path) -> Path:
    """Two classes of 60 grey PNGs each, without a split; always the same images."""
    rng = np.random.default_rng(1)
    for kind in ("across", "down"):
        (folder / kind).mkdir(parents=True)
        for number in range(60):
            Image.fromarray(shape_image(kind, rng)).save(folder / kind / f"{number:03d}.png")
    return folder
