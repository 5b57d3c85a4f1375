"""The images that several benchmarks share: Fashion-MNIST, photographs, and folders of both.

Existing folders are kept. Only numpy is imported here, because processes that are timed from their
start use this module.
"""

import gzip
import io
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

FASHION = Path("/usr/share/datasets/fashion-mnist")
WALLPAPERS = Path("/usr/share/wallpapers")
PHOTO_MAKER = Path(__file__).parents[1] / "scripts" / "make_stand_ins.py"
SPARE_PHOTOS = 40  # more than the broken images planted in each class

Array = np.ndarray[Any, Any]


def read_idx(folder: Path, part: str) -> tuple[Array, Array]:
    """Read Fashion-MNIST's images (n, 28, 28) and labels (n,) of a part, train or t10k."""
    images = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
    return pixels, np.frombuffer(labels, np.uint8, offset=8)


def make_packed(source: Path, target: Path) -> Path:
    """Write Fashion-MNIST, padded to 32x32 in three equal channels, as CIFAR-10's binary files."""

    def fill(folder: Path) -> None:
        pixels, labels = read_idx(source, "train")
        for number, rows in enumerate(np.array_split(np.arange(len(labels)), 5)):
            _write_binary(folder / f"data_batch_{number + 1}.bin", pixels[rows], labels[rows])
        _write_binary(folder / "test_batch.bin", *read_idx(source, "t10k"))
        names = "".join(f"class {number}\n" for number in range(10))
        (folder / "batches.meta.txt").write_text(names)

    return finished_folder(target / "cifar-10-batches-bin", fill)


def _write_binary(path: Path, pixels: Array, labels: Array) -> None:
    path.write_bytes(np.concatenate([labels[:, None], cifar_rows(pixels)], axis=1).tobytes())


def cifar_rows(pixels: Array) -> Array:
    """Pad images from 28x28 to 32x32 and repeat them in three channels: rows of 3,072 bytes."""
    padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2)))
    return np.repeat(padded[:, None], 3, axis=1).reshape(len(pixels), -1)


def write_fashion_sample(folder: Path, train: int, test: int) -> None:
    """Write some of the demo's images as Fashion-MNIST's four files, alternating the classes."""
    from PIL import Image

    demo = resources.files("onsight") / "demo" / "fashion-mnist-sample.zip"
    with demo.open("rb") as file, zipfile.ZipFile(file) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".png"))
        for part, source, count in (("train", "train", train), ("t10k", "test", test)):
            of_part = [name for name in names if name.startswith(f"{source}/")]
            classes = sorted({name.split("/")[1] for name in of_part})
            by_class = [[name for name in of_part if f"/{kind}/" in name] for kind in classes]
            rows = [
                (name, label)
                for turn in zip(*by_class, strict=False)
                for label, name in enumerate(turn)
            ]
            images = [np.asarray(Image.open(archive.open(name))) for name, _ in rows[:count]]
            pixels = np.stack(images).astype(np.uint8)
            labels = np.array([label for _, label in rows[:count]], np.uint8)
            for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
                header = struct.pack(">HBB", 0, 8, values.ndim)
                header += struct.pack(f">{values.ndim}I", *values.shape)
                content = gzip.compress(header + values.tobytes(), mtime=0)
                (folder / f"{part}-{kind}-ubyte.gz").write_bytes(content)


def make_jpeg(number: int, size: tuple[int, int]) -> bytes:
    """A JPEG of smooth random colours, seeded by the number."""
    from PIL import Image

    coarse = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def write_photos(folder: Path, count: int) -> None:
    """Write generated photographs in the layout of PetImages."""
    for number in range(count):
        path = folder / ("Cat", "Dog")[number % 2] / f"{number // 2}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make_jpeg(number, (500, 375)))


def finished_folder(folder: Path, fill: Callable[[Path], object]) -> Path:
    """Return the folder. If it does not exist, fill a temporary one and rename it."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        fill(unfinished)
        unfinished.rename(folder)
    return folder


def link_class(source: Path, target: Path) -> None:
    """Link to the images of a class folder, in the order of a hash of their names."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir(), key=lambda path: sha256(path.name.encode()).digest()):
        (target / path.name).symlink_to(path.resolve())


def photo_folder(count: int, data: Path | None = None, wallpapers: Path = WALLPAPERS) -> Path:
    """A folder with two class folders and this many valid JPEGs in total, of about 500x375.

    data: a folder like PetImages. Otherwise they are cropped from the photographs of Debian's
    package plasma-workspace-wallpapers.
    """
    mark = f"-{crc32(os.fsencode(data.resolve())):08x}" if data else ""

    def fill(target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="onsight-photos-") as made:
            size = str(count // 2 + SPARE_PHOTOS)
            if data is None:
                arguments = ["pets", str(wallpapers), made, size]
                subprocess.run([sys.executable, PHOTO_MAKER, *arguments], check=True)
            for folder in sorted((data or Path(made, "PetImages")).iterdir()):
                if folder.is_dir():
                    _copy_valid(folder, target / folder.name, count // 2)

    return finished_folder(Path(tempfile.gettempdir()) / f"onsight-photos-{count}{mark}", fill)


def _copy_valid(folder: Path, target: Path, count: int) -> None:
    """Copy the first valid JPEGs; a broken file would stop a hand-written loop."""
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
