"""The data for the planted faults: Fashion-MNIST enlarged and in colour, as files and arrays.

    cd benchmarks && python -m planted.pictures /usr/share/datasets/fashion-mnist TARGET

Every picture is a function of its number. A folder's name gives its sizes; existing ones are kept.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from image_files import read_idx
from PIL import Image

PARTS = {"train": "train", "t10k": "val"}


@dataclass(frozen=True)
class Layout:
    """Numbers and size of pictures: as files in class folders, or as arrays of train and val."""

    train: int
    side: int
    suffix: str  # jpg, png or npy (raw colours, flushed to disk); "" for arrays
    val: int = 0
    channels: int = 3

    def folder(self, name: str) -> str:
        return f"{name}-{self.train}-{self.val}-{self.side}"


LAYOUTS = {
    "photos": Layout(600, 400, "jpg"),
    "scans": Layout(64, 600, "jpg"),
    "thumbnails": Layout(1_000, 64, "png"),
    "raw": Layout(96, 1_536, "npy"),
    "small": Layout(20_000, 28, "", val=10_000, channels=1),
    "large": Layout(2_000, 96, "", val=500),
}


def make(source: Path, target: Path, names: list[str]) -> dict[str, Path]:
    """The folders of the named layouts, made if they are missing."""
    folders = {}
    for name in names:
        layout = LAYOUTS[name]
        folders[name] = folder = target / layout.folder(name)
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            write: Callable[..., None] = write_files if layout.suffix else write_arrays
            write(source, layout, unfinished)
            unfinished.rename(folder)
    return folders


def write_files(source: Path, layout: Layout, folder: Path) -> None:
    pixels, labels = read_idx(source, "train")
    for label in range(10):
        (folder / f"class{label}").mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        path = folder / f"class{labels[number]}" / f"{number:05d}.{layout.suffix}"
        picture = coloured(pixels[number], layout.side, number)
        if layout.suffix == "npy":
            with open(path, "wb") as file:
                np.save(file, picture)
                os.fsync(file.fileno())  # only what is on disk can be dropped from the page cache
        else:
            Image.fromarray(picture).save(path, quality=90)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(layout.train)))


def write_arrays(source: Path, layout: Layout, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, name in PARTS.items():
        count = layout.train if name == "train" else layout.val
        pixels, labels = (array[:count] for array in read_idx(source, part))
        if layout.channels == 1:
            images = pixels[:, None]
        else:
            drawn = [coloured(grey, layout.side, n) for n, grey in enumerate(pixels)]
            images = np.stack(drawn).transpose(0, 3, 1, 2)
        np.save(folder / f"{name}-images.npy", np.ascontiguousarray(images))
        np.save(folder / f"{name}-labels.npy", labels.astype(np.int64))


def coloured(grey: np.ndarray, side: int, number: int) -> np.ndarray:
    """A garment in a colour of its own, (side, side, 3), with grain like a photograph's."""
    numbers = np.random.default_rng(number)
    shape = Image.fromarray(grey).resize((side, side), Image.Resampling.BICUBIC)
    colour = numbers.uniform(0.4, 1, 3).astype(np.float32)
    light = np.asarray(shape, np.float32)[..., None] * colour
    grain = numbers.standard_normal((side // 2, side // 2, 1), np.float32) * 10
    light += 30 + grain.repeat(2, axis=0).repeat(2, axis=1)
    return light.clip(0, 255).astype(np.uint8)


if __name__ == "__main__":
    for folder in make(Path(sys.argv[1]), Path(sys.argv[2]), list(LAYOUTS)).values():
        print(folder)
