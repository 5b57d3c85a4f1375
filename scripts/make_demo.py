"""Make the dataset inside the package: a sample of Fashion-MNIST as a zip of PNG folders.

    python scripts/make_demo.py /usr/share/datasets/fashion-mnist

It takes the first 600 training and 100 test images of each class, in the original order.
"""

import gzip
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = (
    "t-shirt", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
IMAGES = {"train": ("train", 600), "test": ("t10k", 100)}
TARGET = Path(__file__).parents[1] / "src/onsight/demo/fashion-mnist-sample.zip"
FIXED_DATE = (2017, 8, 25, 0, 0, 0)  # the release of Fashion-MNIST; keeps the zip reproducible


def read_idx(path: Path, header_bytes: int) -> np.ndarray:
    """Read the bytes of a compressed IDX file after its header."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header_bytes)


def png(pixels: np.ndarray) -> bytes:
    """Encode grey pixels as a PNG file."""
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG", optimize=True)
    return data.getvalue()


def main(source: Path) -> None:
    """Write the zip from the folder with Fashion-MNIST's four files."""
    with zipfile.ZipFile(TARGET, "w", zipfile.ZIP_STORED) as archive:
        for split, (prefix, count) in IMAGES.items():
            labels = read_idx(source / f"{prefix}-labels-idx1-ubyte.gz", 8)
            images = read_idx(source / f"{prefix}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
            for number, name in enumerate(NAMES):
                for place in np.flatnonzero(labels == number)[:count]:
                    member = zipfile.ZipInfo(f"{split}/{name}/{place:05d}.png", FIXED_DATE)
                    archive.writestr(member, png(images[place]))
    print(f"{TARGET}: {TARGET.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
