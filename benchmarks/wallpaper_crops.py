"""Crops of wallpapers: the class is the image that a crop was cut from.

Each image is divided into at least as many cells as crops are wanted. Every crop comes from a cell
of its own, at a random place, scale and brightness, and is saved as a JPEG of 320x240. So no pixel
is in two crops. A hash of the cell decides whether a crop is for training or for testing.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from itertools import islice
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from image_files import finished_folder
from PIL import Image, ImageEnhance

from onsight_explain.threads import usable_cores

SIZE = (320, 240)
SHARE = (0.5, 1.0)  # side length relative to the largest crop that fits into the cell
BRIGHTNESS = (0.6, 1.4)
QUALITY = 90
IMAGES = {".png", ".jpg", ".jpeg"}


class Cell(NamedTuple):
    """A part of an image, in pixels."""

    left: int
    top: int
    width: int
    height: int


def make_wallpaper_crops(source: Path, cache: Path, train: int = 60, test: int = 20) -> Path:
    """A folder with train/IMAGE and test/IMAGE and these numbers of crops in each."""
    counts = {"train": train, "test": test}
    originals = {place.name: largest(place) for place in sorted(source.iterdir())}

    def fill(target: Path) -> None:
        with ThreadPoolExecutor(usable_cores()) as pool:
            cut = partial(cut_image, counts=counts, target=target)
            list(pool.map(cut, originals.keys(), originals.values()))

    return finished_folder(cache / f"wallpaper-cells-{train}-{test}", fill)


def largest(place: Path) -> Path:
    """The version of a wallpaper with the most pixels."""
    paths = sorted(p for p in (place / "contents" / "images").iterdir() if p.suffix in IMAGES)
    return max(paths, key=_pixels)


def _pixels(path: Path) -> int:
    with Image.open(path) as image:
        return image.width * image.height


def cut_image(name: str, path: Path, counts: dict[str, int], target: Path) -> None:
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    cells = iter(divide(name, image, sum(counts.values())))
    for part, count in counts.items():
        (target / part / name).mkdir(parents=True, exist_ok=True)
        for number, cell in enumerate(islice(cells, count)):
            crop = cut(image, cell, f"{name}/{part}/{number}")
            crop.save(target / part / name / f"{number:04}.jpg", quality=QUALITY)


def divide(name: str, image: Image.Image, count: int) -> list[Cell]:
    """Divide an image into at least this many cells, ordered by hash."""
    rows = columns = ceil(count**0.5)
    width, height = image.width // columns, image.height // rows
    cells = [
        Cell(column * width, row * height, width, height)
        for row in range(rows)
        for column in range(columns)
    ]
    return sorted(cells, key=lambda cell: _hash(f"{name}/{cell}"))


def cut(image: Image.Image, cell: Cell, name: str) -> Image.Image:
    """Cut a crop from a cell; its name is the seed."""
    generator = np.random.default_rng(int.from_bytes(_hash(name)[:8]))
    scale = min(cell.width / SIZE[0], cell.height / SIZE[1]) * generator.uniform(*SHARE)
    width, height = round(SIZE[0] * scale), round(SIZE[1] * scale)
    left = cell.left + int(generator.integers(cell.width - width + 1))
    top = cell.top + int(generator.integers(cell.height - height + 1))
    box = (left, top, left + width, top + height)
    crop = image.resize(SIZE, Image.Resampling.BILINEAR, box)
    return ImageEnhance.Brightness(crop).enhance(generator.uniform(*BRIGHTNESS))


def _hash(text: str) -> bytes:
    return sha256(text.encode()).digest()
