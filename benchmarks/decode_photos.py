"""How fast is a folder of photographs decoded to small grey pictures, and how close to the limit?

    python benchmarks/decode_photos.py [--full] [--rounds 7] [--data PetImages]

5,000 JPEGs of about 500x375 (25,000 with --full) become 50x50 grey, as in the usual cats-and-dogs
tutorial. Onsight does what a run does: find the files, decode them in threads, digest, write the
pack, fsync. The limit is libjpeg-turbo alone: decoding at the scale and in the colours that Onsight
uses, in as many threads, with nothing resized, digested or kept. Needs OpenCV
(benchmarks/requirements.txt). Without --data, the pictures are made from the photographs in
--wallpapers, from Debian's package plasma-workspace-wallpapers, and kept in the system's temporary
folder.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np
import simplejpeg
from harness import circumstances, interleave, paired, table, write_section
from PIL import Image

from onsight.data.fit import PictureFormat
from onsight.data.pack import Pack, open_pack
from onsight.data.packing import Job, prepare_picture
from onsight.data.sources.find import find_source
from onsight.hardware.cores import usable_cores

WALLPAPERS = Path("/usr/share/wallpapers")
MAKER = Path(__file__).parents[1] / "scripts" / "make_stand_ins.py"
SPARE = 40  # more than the broken pictures that the maker plants in each class
CHUNK = 64
SIDE = 50
TARGET = PictureFormat(SIDE, SIDE, 1)
OURS, AGAIN = "Onsight, the first time", "Onsight, reopened"

Work = Callable[[], object]


def photo_folder(count: int, data: Path | None = None, wallpapers: Path = WALLPAPERS) -> Path:
    """A folder of two class folders with this many valid JPEGs in all, kept between runs."""
    mark = f"-{crc32(os.fsencode(data.resolve())):08x}" if data else ""
    place = Path(tempfile.gettempdir()) / f"onsight-photos-{count}{mark}"
    if place.exists():
        return place
    with tempfile.TemporaryDirectory(prefix="onsight-photos-") as made:
        if data is None:
            size = str(count // 2 + SPARE)
            subprocess.run([sys.executable, MAKER, "pets", wallpapers, made, size], check=True)
            data = Path(made) / "PetImages"
        unfinished = Path(tempfile.mkdtemp(prefix="onsight-photos-"))
        for folder in sorted(path for path in data.iterdir() if path.is_dir()):
            copy_sound(folder, unfinished / folder.name, count // 2)
    unfinished.rename(place)
    return place


def copy_sound(folder: Path, target: Path, count: int) -> None:
    """Copy the first files that are valid JPEGs: the peers fail on a broken one."""
    target.mkdir()
    sound = (path for path in sorted(folder.glob("*.jpg")) if is_sound(path))
    for _, path in zip(range(count), sound, strict=False):
        shutil.copyfile(path, target / path.name)


def is_sound(path: Path) -> bool:
    try:
        simplejpeg.decode_jpeg(path.read_bytes(), min_height=1, min_width=1)
    except ValueError:
        return False
    return True


def onsight_pack(folder: Path, cache: Path) -> Pack:
    return open_pack(Job(find_source(str(folder)), TARGET, threads=usable_cores()), cache)


def onsight_first(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as cache:
        assert not onsight_pack(folder, Path(cache)).was_cached


def onsight_again(folder: Path, cache: Path) -> None:
    assert onsight_pack(folder, cache).was_cached


def read_cv2(path: str, flag: int) -> np.ndarray:
    import cv2

    return cv2.resize(cv2.imread(path, flag), (SIDE, SIDE))


def tutorial(paths: list[str], threads: int) -> None:
    """The tutorial's loop: a list of small pictures, then one array."""
    import cv2

    former = cv2.getNumThreads()
    cv2.setNumThreads(threads or former)
    np.array([read_cv2(path, cv2.IMREAD_GRAYSCALE) for path in paths])
    cv2.setNumThreads(former)


def in_threads(one: Callable[..., object], items: list) -> None:
    """Apply a function to every item in as many threads as Onsight uses, keeping the order."""

    def some(start: int) -> list:
        return [one(item) for item in items[start : start + CHUNK]]

    with ThreadPoolExecutor(usable_cores()) as pool:
        parts = list(pool.map(some, range(0, len(items), CHUNK)))
    np.array([item for part in parts for item in part])


def opencv_in_threads(paths: list[str], flag_name: str) -> None:
    import cv2

    former = cv2.getNumThreads()
    cv2.setNumThreads(1)  # the pool uses the cores
    in_threads(partial(read_cv2, flag=getattr(cv2, flag_name)), paths)
    cv2.setNumThreads(former)


def read_pillow(path: str, draft: bool) -> np.ndarray:
    with Image.open(path) as image:
        if draft:
            image.draft("L", (2 * SIDE, 2 * SIDE))
        return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def decode_only(data: bytes, colours: str) -> None:
    """The limit: what every path that decodes at this scale and to these colours must do."""
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    least = 2 * SIDE
    simplejpeg.decode_jpeg(
        data, colours, min_height=min(least, height), min_width=min(least, width)
    )


def read_and_decode(path: str, colours: str) -> None:
    with open(path, "rb") as file:
        decode_only(file.read(), colours)


def our_colours(sample: bytes) -> str:
    """The colours that Onsight decodes a colour JPEG to when grey is wanted."""
    decoded, _ = prepare_picture(sample, TARGET)
    return "GRAY" if decoded.shape[2] == 1 else "RGB"


def limits(paths: list[str], contents: list[bytes]) -> dict[str, Work]:
    first = our_colours(contents[0])
    other = "RGB" if first == "GRAY" else "GRAY"
    named = {f"limit, {first} as we decode": first, f"limit, {other}": other}
    works: dict[str, Work] = {}
    for name, colours in named.items():
        works[f"{name}, from memory"] = partial(
            in_threads, partial(decode_only, colours=colours), contents
        )
        works[f"{name}, read in the loop"] = partial(
            in_threads, partial(read_and_decode, colours=colours), paths
        )
    return works


def contenders(folder: Path, cache: Path) -> dict[str, Work]:
    paths = [str(path) for path in sorted(folder.rglob("*.jpg"))]
    contents = [Path(path).read_bytes() for path in paths]
    pillow = partial(read_pillow, draft=True)
    return {
        OURS: partial(onsight_first, folder),
        AGAIN: partial(onsight_again, folder, cache),
        "tutorial's loop, OpenCV with its own threads": partial(tutorial, paths, 0),
        "tutorial's loop, OpenCV with one thread": partial(tutorial, paths, 1),
        "OpenCV in a pool of threads": partial(opencv_in_threads, paths, "IMREAD_GRAYSCALE"),
        "OpenCV in a pool, decoded at 1/4": partial(
            opencv_in_threads, paths, "IMREAD_REDUCED_GRAYSCALE_4"
        ),
        "Pillow": lambda: np.array([read_pillow(path, draft=False) for path in paths]),
        "Pillow with draft": lambda: np.array([pillow(path) for path in paths]),
        "Pillow with draft in a pool of threads": partial(in_threads, pillow, paths),
        **limits(paths, contents),
    }


def rate(work: Work, count: int) -> float:
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)


def rows(rates: dict[str, list[float]]) -> Iterable[list[str]]:
    for name, found in rates.items():
        against = "" if name == OURS else str(paired(rates[OURS], found))
        yield [name, f"{statistics.median(found):,.0f}", against]


def show(rates: dict[str, list[float]], count: int) -> None:
    lines = [
        "## Photographs to small grey pictures",
        "",
        f"{count:,} JPEGs of about 500x375 to {SIDE}x{SIDE} grey; "
        f"{circumstances('simplejpeg', 'pillow', 'opencv-python-headless', 'numpy')}. "
        f"Pools have {usable_cores()} threads. The limit keeps nothing; `from memory` is given the "
        "bytes of the files, the others read them from a warm page cache.",
        "",
        *table(["contender", "images/s", "Onsight's first rate / its rate"], rows(rates)),
    ]
    again = paired(rates[AGAIN], rates[OURS])
    lines += ["", f"A second run opens the pack instead, {again} times as fast as the first."]
    write_section("decode_photos", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--files", type=int, default=0, help="another number of pictures")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--wallpapers", type=Path, default=WALLPAPERS)
    options = parser.parse_args()
    count = options.files or (25_000 if options.full else 5_000)
    folder = photo_folder(count, options.data, options.wallpapers)
    count = sum(len(files) for _, _, files in os.walk(folder))
    with tempfile.TemporaryDirectory() as cache:
        onsight_pack(folder, Path(cache))
        works = contenders(folder, Path(cache))
        rates = interleave(
            {name: partial(rate, work, count) for name, work in works.items()}, options.rounds
        )
    show(rates, count)


if __name__ == "__main__":
    main()
