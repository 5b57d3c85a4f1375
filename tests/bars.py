"""Images of bars: the small data set that most tests train on."""

import io
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

KINDS = ("across", "down")


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
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
    for name, content in encode_bars().items():
        (folder / name).write_bytes(content)
    return folder


@cache  # hundreds of tests have a copy of their own
def encode_bars() -> dict[str, bytes]:
    """The content of each file, by its path within the folder."""
    rng, files = np.random.default_rng(1), {}
    for kind in KINDS:
        for number in range(60):
            file = io.BytesIO()
            Image.fromarray(shape_image(kind, rng)).save(file, "PNG")
            files[f"{kind}/{number:03d}.png"] = file.getvalue()
    return files
