"""How do time and memory of the search for near-duplicates grow with the number of images?

    python benchmarks/near_duplicate_growth.py [--counts 10000 100000] [--data FOLDER]

The images are crops of 64x64 pixels from photographs, at random places and scales, in memory. One
in a hundred is a re-encoded copy of another. Each count runs in its own process. The exponent is
that of the time between two counts: 1 for n, about 1.05 for n log n.
"""

import argparse
import io
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from harness import circumstances, table, write_section
from image_files import WALLPAPERS
from PIL import Image

from onsight.data.duplicates.near import find_near_duplicates
from onsight.data.fit import ImageFormat
from onsight.data.index import Index, Row
from onsight.data.pack import Pack

SIDE = 64
COPY_EVERY = 100  # one image in this many is a copy


def reencode(pixels: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=80)
    return np.asarray(Image.open(file))


def make_crops(folder: Path, count: int) -> np.ndarray:
    """Crops of the photographs, uint8 (count, 64, 64, 3), some of them re-encoded copies."""
    rng = np.random.default_rng(0)
    photos = []
    for path in sorted(folder.rglob("*.jpg"))[:40]:
        with Image.open(path) as image:
            image.thumbnail((1600, 1600))
            photos.append(image.convert("RGB"))
    made = np.empty((count, SIDE, SIDE, 3), np.uint8)
    for number in range(count):
        if number % COPY_EVERY == COPY_EVERY - 1:
            made[number] = reencode(made[number - 1 - rng.integers(0, number)])
            continue
        photo = photos[rng.integers(len(photos))]
        side = int(rng.integers(SIDE, min(photo.size) // 2))
        left = int(rng.integers(0, photo.width - side))
        top = int(rng.integers(0, photo.height - side))
        box = (left, top, left + side, top + side)
        made[number] = np.asarray(photo.resize((SIDE, SIDE), box=box))
    return made


def make_pack(pixels: np.ndarray) -> Pack:
    count = len(pixels)
    digests = np.random.default_rng(1).integers(0, 256, (count, 16), np.uint8)
    index = Index.of([Row(str(number), "a") for number in range(count)])
    rows = np.arange(count)
    return Pack(pixels, rows, rows, digests, index, [], ImageFormat(SIDE, SIDE, 3), False)


def measure(folder: Path, count: int) -> None:
    pack = make_pack(make_crops(folder, count))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    found = find_near_duplicates(pack)
    seconds = time.perf_counter() - begun
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    facts = {"count": count, "seconds": seconds, "more_bytes": 1024 * more}
    print(json.dumps(facts | {"found": len(found)}))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=WALLPAPERS)
    parser.add_argument("--counts", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        return measure(options.data, options.one)
    found = []
    for count in options.counts:
        command = [sys.executable, __file__, "--data", options.data, "--one", count]
        done = subprocess.run([str(word) for word in command], capture_output=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(found[-1], file=sys.stderr)
    rows = [
        [
            f"{row['count']:,}",
            f"{row['seconds']:.1f}",
            f"{1e3 * row['seconds'] / row['count']:.2f}",
            f"{row['more_bytes'] / 1e6:,.0f} MB",
            f"{row['found']:,}",
        ]
        for row in found
    ]
    header = ["images", "seconds", "ms per image", "memory beyond the images", "pairs found"]
    title = "## Growth of the search for near-duplicates"
    lines = [title, "", circumstances(), "", *table(header, rows)]
    if len(found) > 1:
        first, last = found[0], found[-1]
        growth = math.log(last["seconds"] / first["seconds"]) / math.log(
            last["count"] / first["count"]
        )
        million = last["seconds"] * (1e6 / last["count"]) ** growth
        forecast = f"extrapolated to a million images: {million / 60:.0f} min"
        lines += ["", f"Exponent {growth:.2f}; {forecast}."]
    write_section("near-duplicates growth", lines)
    return None


if __name__ == "__main__":
    main()
