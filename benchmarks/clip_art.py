"""Open Clip Art by category: every image once, a fifth of each category for testing.

A category is a top-level folder, including its nested folders. Some images are left out for all
contenders: those that Onsight refuses by default (16 of more than 64 megapixels, most of which
Pillow refuses too), all but the first of images with the same pixels, and categories with fewer
than 40 images left. Images keep their size unless a longest side is given.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from image_files import finished_folder
from PIL import Image

from onsight.data.decode import decode, pixel_digest
from onsight.errors import ImageError
from onsight_explain.threads import usable_cores

CLIP_ART = Path("/usr/share/openclipart/png")
MIN_IMAGES = 40
TEST_SHARE = 0.2


def make_clip_art(source: Path, cache: Path, longest_side: int = 0) -> Path:
    """A folder with train/CATEGORY and test/CATEGORY; longest_side: in pixels, 0 for originals."""
    name = f"clip-art-{longest_side}" if longest_side else "clip-art"
    return finished_folder(cache / name, lambda target: fill(source, target, longest_side))


def fill(source: Path, target: Path, longest_side: int) -> None:
    jobs = list(assign_paths(categories(source), source, target))
    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(lambda job: link_or_shrink(job[0], job[1], longest_side), jobs))


def categories(source: Path) -> dict[str, list[tuple[str, Path]]]:
    """The (digest, path) of every usable image by category, each list sorted by digest."""
    paths = sorted(source.rglob("*.png"))
    with ThreadPoolExecutor(usable_cores()) as pool:
        digests = list(pool.map(digest_file, paths))
    found: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    seen = {""}
    for digest, path in zip(digests, paths, strict=True):
        if digest not in seen:
            seen.add(digest)
            found[path.relative_to(source).parts[0]].append((digest, path))
    return {name: sorted(rows) for name, rows in found.items() if len(rows) >= MIN_IMAGES}


def digest_file(path: Path) -> str:
    """A hash of an image's decoded pixels; empty if it cannot be used."""
    try:
        return pixel_digest(decode(path.read_bytes())).hex()
    except ImageError:
        return ""


def assign_paths(
    found: dict[str, list[tuple[str, Path]]], source: Path, target: Path
) -> Iterable[tuple[Path, Path]]:
    """Yield each image's (path, new path); the lowest digests of a category are for testing."""
    for category, rows in found.items():
        tests = math.ceil(TEST_SHARE * len(rows))
        for number, (_, path) in enumerate(rows):
            part = "test" if number < tests else "train"
            name = "-".join(path.relative_to(source / category).parts)
            yield path, target / part / category / name


def link_or_shrink(path: Path, place: Path, longest_side: int) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not longest_side:
        place.symlink_to(path)
        return
    with Image.open(path) as image:
        mode = "RGBA" if image.has_transparency_data else "RGB"
        small = image.convert(mode)
    small.thumbnail((longest_side, longest_side))
    small.save(place)
