"""Which pictures do the benchmarks run on? Fashion-MNIST, in the two layouts of the peers.

    python benchmarks/stand_ins.py /usr/share/datasets/fashion-mnist TARGET

TARGET/cifar-10-batches-bin: padded to 32x32 in three equal channels, as CIFAR-10's binary files
("packed"). TARGET/png: PNG files of 28x28 in RGB, in train/CLASS and test/CLASS ("png"). Folders
that exist already are kept.
"""

import gzip
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

PARTS = {"train": "train", "t10k": "test"}


def read_idx(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (n, 28, 28) and labels (n,) of a part: train or t10k."""
    images = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
    return pixels, np.frombuffer(labels, np.uint8, offset=8)


def make_packed(source: Path, target: Path) -> Path:
    """CIFAR-10's binary files, in five parts and a test batch."""
    folder = target / "cifar-10-batches-bin"
    if not (folder / "batches.meta.txt").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pixels, labels = read_idx(source, "train")
        for number in range(5):
            part = slice(number * 12_000, (number + 1) * 12_000)
            _write_binary(folder / f"data_batch_{number + 1}.bin", pixels[part], labels[part])
        _write_binary(folder / "test_batch.bin", *read_idx(source, "t10k"))
        # Written last: it marks the folder as complete.
        names = "".join(f"class {number}\n" for number in range(10))
        (folder / "batches.meta.txt").write_text(names)
    return folder


def _write_binary(path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2)))
    planes = np.repeat(padded[:, None], 3, axis=1).reshape(len(pixels), -1)
    path.write_bytes(np.concatenate([labels[:, None], planes], axis=1).tobytes())


def make_png(source: Path, target: Path) -> Path:
    """PNG files in class folders."""
    folder = target / "png"
    if not folder.exists():
        unfinished = target / "png.unfinished"
        for part, name in PARTS.items():
            _write_pngs(unfinished / name, *read_idx(source, part))
        unfinished.rename(folder)
    return folder


def _write_pngs(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    for label in range(10):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        picture = Image.fromarray(pixels[number]).convert("RGB")
        picture.save(folder / str(labels[number]) / f"{number:05}.png")

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(len(pixels))))


MAKERS = {"packed": make_packed, "png": make_png}

if __name__ == "__main__":
    for make in MAKERS.values():
        print(make(Path(sys.argv[1]), Path(sys.argv[2])))
