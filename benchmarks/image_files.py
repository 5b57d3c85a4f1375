"""The images that several benchmarks share: Fashion-MNIST, photographs, and folders of both.

Folders that exist already are kept. Only numpy is imported here, as processes that are timed from
their start use this module.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

FASHION = Path("/usr/share/datasets/fashion-mnist")
WALLPAPERS = Path("/usr/share/wallpapers")
PHOTO_MAKER = Path(__file__).parents[1] / "scripts" / "make_stand_ins.py"
SPARE_PHOTOS = 40  # more than the broken images that the maker plants in each class

Array = np.ndarray[Any, Any]


def read_idx(folder: Path, part: str) -> tuple[Array, Array]:
    """Fashion-MNIST's images (n, 28, 28) and labels (n,) of a part: train or t10k."""
    images = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
    return pixels, np.frombuffer(labels, np.uint8, offset=8)


def make_packed(source: Path, target: Path) -> Path:
    """Fashion-MNIST padded to 32x32 in three equal channels, as CIFAR-10's binary files."""

    def fill(folder: Path) -> None:
        pixels, labels = read_idx(source, "train")
        for number, rows in enumerate(np.array_split(np.arange(len(labels)), 5)):
            _write_binary(folder / f"data_batch_{number + 1}.bin", pixels[rows], labels[rows])
        _write_binary(folder / "test_batch.bin", *read_idx(source, "t10k"))
        names = "".join(f"class {number}\n" for number in range(10))
        (folder / "batches.meta.txt").write_text(names)

    return finished_folder(target / "cifar-10-batches-bin", fill)


def _write_binary(path: Path, pixels: Array, labels: Array) -> None:
    padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2)))
    planes = np.repeat(padded[:, None], 3, axis=1).reshape(len(pixels), -1)
    path.write_bytes(np.concatenate([labels[:, None], planes], axis=1).tobytes())


def finished_folder(folder: Path, fill: Callable[[Path], object]) -> Path:
    """The folder; if it does not exist, fill makes it under another name beside it first."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        fill(unfinished)
        unfinished.rename(folder)
    return folder


def link_class(source: Path, target: Path) -> None:
    """Link to the images of one class folder, in the order of a hash of their names."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir(), key=lambda path: sha256(path.name.encode()).digest()):
        (target / path.name).symlink_to(path.resolve())


def photo_folder(count: int, data: Path | None = None, wallpapers: Path = WALLPAPERS) -> Path:
    """A folder of two class folders with this many valid JPEGs in all, of about 500x375.

    data: a folder like PetImages. Otherwise they are cropped from the photographs of Debian's
    package plasma-workspace-wallpapers.
    """
    mark = f"-{crc32(os.fsencode(data.resolve())):08x}" if data else ""

    def fill(target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="onsight-photos-") as made:
            size = str(count // 2 + SPARE_PHOTOS)
            command = [sys.executable, PHOTO_MAKER, "pets", wallpapers, made, size]
            if data is None:
                subprocess.run(command, check=True)
            for folder in sorted((data or Path(made, "PetImages")).iterdir()):
                if folder.is_dir():
                    _copy_valid(folder, target / folder.name, count // 2)

    return finished_folder(Path(tempfile.gettempdir()) / f"onsight-photos-{count}{mark}", fill)


def _copy_valid(folder: Path, target: Path, count: int) -> None:
    """Copy the first files that are valid JPEGs: hand-written loops fail on a broken one."""
    target.mkdir()
    valid = (path for path in sorted(folder.glob("*.jpg")) if _is_valid(path))
    for _, path in zip(range(count), valid, strict=False):
        shutil.copyfile(path, target / path.name)


def _is_valid(path: Path) -> bool:
    from simplejpeg import decode_jpeg

    try:
        decode_jpeg(path.read_bytes(), min_height=1, min_width=1)
    except ValueError:
        return False
    return True
