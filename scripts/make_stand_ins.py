"""Make stand-ins for the datasets of the recipes, in the same layout, from other images.

    python scripts/make_stand_ins.py cifar FASHION_MNIST_FOLDER TARGET
    python scripts/make_stand_ins.py pets PHOTOGRAPHS_FOLDER TARGET [JPEGS_A_CLASS]

cifar: Fashion-MNIST padded to 32x32 in three equal channels, as cifar-10-batches-py.
pets: PetImages with Cat and Dog. JPEGs of about 500x375 are cropped from two groups of photographs.
The two Thumbs.db and 54 broken images (24 and 30) are planted among them.
"""

import gzip
import io
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = (
    "t-shirt", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
BROKEN = {"Cat": 24, "Dog": 30}
BROKEN_BYTES = (b"", b"<html>not found</html>", b"\xff\xd8\xff\xe0", b"BM" + bytes(20))


def make_cifar(source: Path, target: Path) -> None:
    """Write Fashion-MNIST in the layout of CIFAR-10."""
    folder = target / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    pixels, labels = read_idx(source, "train")
    for number in range(5):
        part = slice(number * 12_000, (number + 1) * 12_000)
        write_batch(folder / f"data_batch_{number + 1}", pixels[part], labels[part])
    write_batch(folder / "test_batch", *read_idx(source, "t10k"))
    dump(folder / "batches.meta", {b"label_names": [name.encode() for name in NAMES]})


def read_idx(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the pixels and labels of one split, `train` or `t10k`."""
    images = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
    return pixels, np.frombuffer(labels, np.uint8, offset=8)


def write_batch(path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    """Write a batch file, each image padded to 32x32 and repeated in three channels."""
    padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2)))
    rows = np.repeat(padded[:, None], 3, axis=1).reshape(len(pixels), -1)
    dump(path, {b"data": rows, b"labels": labels.tolist()})


def dump(path: Path, content: dict[bytes, object]) -> None:
    """Pickle the content with protocol 2."""
    with path.open("wb") as file:
        pickle.dump(content, file, protocol=2)  # like the original files


def make_pets(source: Path, target: Path, jpegs: int) -> None:
    """Write both classes of PetImages with that many JPEGs each."""
    photographs = sorted(path for path in source.rglob("*.jpg") if path.stat().st_size > 200_000)
    # All sizes of a photograph are in one folder and must stay in one class.
    folders = sorted({path.relative_to(source).parts[0] for path in photographs})
    groups = [
        [
            path
            for path in photographs
            if folders.index(path.relative_to(source).parts[0]) % 2 == side
        ]
        for side in (0, 1)
    ]
    jobs = [
        (group, target / "PetImages" / name, jpegs, BROKEN[name])
        for group, name in zip(groups, BROKEN, strict=True)
    ]
    with ProcessPoolExecutor(len(jobs)) as pool:
        list(pool.map(make_class, *zip(*jobs, strict=True)))


def make_class(photographs: list[Path], folder: Path, jpegs: int, broken: int) -> None:
    """Write a class: crops of its photographs, some of them replaced by broken files."""
    folder.mkdir(parents=True)
    (folder / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(508))
    generator = np.random.default_rng(len(photographs[0].name))
    images = [open_small(path) for path in photographs]
    bad = set(generator.choice(jpegs, broken, replace=False).tolist())
    for number in range(jpegs):
        content = crop(images[int(generator.integers(len(images)))], generator)
        if number in bad:
            content = BROKEN_BYTES[number % len(BROKEN_BYTES)]
        (folder / f"{number}.jpg").write_bytes(content)


def open_small(path: Path) -> Image.Image:
    """Load a photograph, scaled to at most 1,600 pixels a side."""
    image = Image.open(path).convert("RGB")
    image.thumbnail((1600, 1600))
    return image


def crop(image: Image.Image, generator: np.random.Generator) -> bytes:
    """Encode a random part of a photograph as a JPEG of 350 to 500 by 300 to 450 pixels."""
    width, height = int(generator.integers(350, 501)), int(generator.integers(300, 451))
    zoom = generator.uniform(1.0, min(image.width / width, image.height / height))
    box_width, box_height = int(width * zoom), int(height * zoom)
    left = int(generator.integers(image.width - box_width + 1))
    top = int(generator.integers(image.height - box_height + 1))
    box = (left, top, left + box_width, top + box_height)
    file = io.BytesIO()
    image.resize((width, height), Image.Resampling.BILINEAR, box).save(file, "JPEG", quality=90)
    return file.getvalue()


if __name__ == "__main__":
    kind, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if kind == "cifar":
        make_cifar(source, target)
    else:
        make_pets(source, target, int(sys.argv[4]) if len(sys.argv) > 4 else 12_500)
