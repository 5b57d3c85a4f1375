"""Seven datasets as newcomers bring them: small and large, few and many, one file and many files.

    python benchmarks/effort_sets.py OUT [NAME ...]

Each becomes OUT/NAME, from packages of Debian and scikit-learn; existing folders are kept.
"""

import argparse
import random
import shutil
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from clip_art import CLIP_ART, fill
from image_files import FASHION, WALLPAPERS, finished_folder, read_idx
from PIL import Image
from sklearn.datasets import load_digits
from wallpaper_crops import largest

ARCHIVE = "fashion-mnist-sample.zip"
CROPS = 70  # of each wallpaper
SIDES = (50, 400)  # pixels
CLOTHES = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


def demo(target: Path) -> None:
    """The sample inside the package: 6,000 + 1,000 images of 28x28."""
    with resources.as_file(resources.files("onsight") / "demo" / ARCHIVE) as path:
        shutil.unpack_archive(path, target)


def digits(target: Path) -> None:
    """scikit-learn's digits: 1,797 images of 8x8."""
    found = load_digits()
    for number, (pixels, label) in enumerate(zip(found.images, found.target, strict=True)):
        image = Image.fromarray((pixels * 255 / 16).astype("uint8"))
        save(image, target / str(label) / f"{number:04}.png")


def crops(target: Path) -> None:
    """Crops of eleven wallpapers, of 50 to 400 pixels a side: 770 JPEG files."""
    for place in sorted(WALLPAPERS.iterdir())[:11]:
        cut_crops(place, target, CROPS)


def fifty(target: Path) -> None:
    """Crops of two wallpapers: 50 JPEG files."""
    for place in sorted(WALLPAPERS.iterdir())[:2]:
        cut_crops(place, target, 25)


def cut_crops(place: Path, target: Path, count: int) -> None:
    draw = random.Random(place.name)
    with Image.open(largest(place)) as opened:
        image = opened.convert("RGB")
    for number in range(count):
        width, height = (draw.randint(*SIDES) for _ in range(2))
        left, top = draw.randint(0, image.width - width), draw.randint(0, image.height - height)
        crop = image.crop((left, top, left + width, top + height))
        save(crop, target / place.name / f"{number:03}.jpg")


def fashion_idx(target: Path) -> None:
    """Fashion-MNIST as it is published: four files, 60,000 + 10,000 images of 28x28."""
    for path in FASHION.glob("*ubyte*"):
        (target / path.name).write_bytes(path.read_bytes())


def fashion_png(target: Path) -> None:
    """The same as 70,000 files."""
    for part, name in {"train": "train", "t10k": "test"}.items():
        for number, (pixels, label) in enumerate(zip(*read_idx(FASHION, part), strict=True)):
            save(Image.fromarray(pixels), target / name / CLOTHES[label] / f"{number:05}.png")


def clip_art(target: Path) -> None:
    """Drawings by subject, of any size and mode: about 6,900 PNG files."""
    fill(CLIP_ART, target, longest_side=0)


def save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


SETS: dict[str, Callable[[Path], None]] = {
    "demo": demo,
    "digits": digits,
    "crops": crops,
    "fifty": fifty,
    "fashion-idx": fashion_idx,
    "fashion-png": fashion_png,
    "clip-art": clip_art,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=list(SETS))
    options = parser.parse_args(arguments)
    for name in options.names:
        print(finished_folder(options.out / name, SETS[name]))


if __name__ == "__main__":
    main()
