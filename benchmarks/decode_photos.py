"""How fast is a folder of photographs decoded to small grey images, and how close to the limit?

    python benchmarks/decode_photos.py [--full] [--rounds 7] [--data PetImages]

5,000 JPEGs of about 500x375 (25,000 with --full) become 50x50 grey, as in the usual cats-and-dogs
tutorial. Onsight does what a run does: find the files, decode them in threads, compute digests,
write the pack, fsync. The limit is libjpeg-turbo alone. It decodes at the scale and in the colours
that Onsight uses, in as many threads, without resizing, digests or storing. --data: a folder like
PetImages, instead of crops of the photographs in Debian's package plasma-workspace-wallpapers.
"""

import statistics
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import simplejpeg
from harness import circumstances, interleave, paired, table, write_section
from image_files import photo_folder

from onsight.data.decode import prepare_image
from onsight.data.fit import ImageFormat
from onsight.data.pack import Pack, open_pack
from onsight.data.packing import PackJob
from onsight.data.sources.find import find_source
from onsight_explain.threads import usable_cores

CHUNK = 64
SIDE = 50
TARGET = ImageFormat(SIDE, SIDE, 1)
OURS, REOPENED = "Onsight, first time", "Onsight, reopened"


def open_folder(folder: Path, cache: Path) -> Pack:
    """Open the folder's images as a pack; make it if the cache does not have it."""
    return open_pack(PackJob(find_source(str(folder)), TARGET, threads=usable_cores()), cache)


def decode_first(folder: Path) -> None:
    """Open the folder with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        assert not open_folder(folder, Path(cache)).was_cached


def decode_only(data: bytes, colours: str) -> None:
    """Decode a JPEG as Onsight does, without any further work."""
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    least = 2 * SIDE
    simplejpeg.decode_jpeg(
        data, colours, min_height=min(least, height), min_width=min(least, width)
    )


def decode_all(contents: list[bytes], colours: str) -> None:
    """Decode all JPEGs in as many threads as Onsight uses."""

    def decode_chunk(start: int) -> None:
        for data in contents[start : start + CHUNK]:
            decode_only(data, colours)

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(decode_chunk, range(0, len(contents), CHUNK)))


def our_colours(sample: bytes) -> str:
    """The colours that Onsight decodes a colour JPEG to for a grey image."""
    decoded, _ = prepare_image(sample, TARGET)
    return "GRAY" if decoded.shape[2] == 1 else "RGB"


def measure_rate(work: Callable[[], object], count: int) -> float:
    """Images per second."""
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and update the section in RESULTS.md."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--files", type=int, default=0, help="another number of images")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args(arguments)
    folder = photo_folder(options.files or (25_000 if options.full else 5_000), options.data)
    contents = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
    colours = our_colours(contents[0])
    with tempfile.TemporaryDirectory() as cache:
        open_folder(folder, Path(cache))
        tasks: dict[str, Callable[[], object]] = {
            OURS: partial(decode_first, folder),
            REOPENED: partial(open_folder, folder, Path(cache)),
            f"limit, {colours} as we decode, from memory": partial(decode_all, contents, colours),
        }
        timed = {name: partial(measure_rate, work, len(contents)) for name, work in tasks.items()}
        rates = interleave(timed, options.rounds)
    rows = [
        [name, f"{statistics.median(found):,.0f}", "" if name == OURS else ratio]
        for name, found in rates.items()
        for ratio in [str(paired(rates[OURS], found))]
    ]
    lines = [
        "## Photographs to small grey images",
        "",
        f"{len(contents):,} JPEGs of about 500x375 to {SIDE}x{SIDE} grey; "
        f"{circumstances('simplejpeg', 'numpy')}. Pools have {usable_cores()} threads. The limit "
        "stores nothing.",
        "",
        *table(["contender", "images/s", "Onsight's first rate / its rate"], rows),
        "",
        f"A second run opens the pack instead, {paired(rates[REOPENED], rates[OURS])} times as "
        "fast as the first.",
    ]
    write_section("decode_photos", lines)


if __name__ == "__main__":
    main()
