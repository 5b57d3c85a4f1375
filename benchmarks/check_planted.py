"""Does `onsight check` find what was planted among real images, and nothing else?

    python benchmarks/check_planted.py IMAGES [--count 2000] [--wrong 40]

IMAGES is any folder with images, such as /usr/share/openclipart/png. The script draws --count of
them, a fifth for the test set. It plants copies of training images in the test set: 50 identical,
50 resized or re-encoded, 20 with up to 6% cut from each side, 20 mirrored. Pairs that were not
planted are printed, so that people can check whether they are real copies. Then it gives --wrong
training images of Fashion-MNIST wrong labels, and looks for them among the first 60 suspects.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from harness import circumstances, table, write_section
from image_files import FASHION, read_idx
from PIL import Image, ImageOps

import onsight
from onsight.audit.audit import Audit
from onsight.report.console import SilentReporter

PLANTED = {"identical": 50, "resized or encoded": 50, "cropped": 20, "mirrored": 20}
FIRST = 60  # number of suspects that count
COPIES = ("leakage", "two-labels", "identical", "near-duplicate")


def open_on_white(path: Path) -> Image.Image:
    """Load an image in RGB, on a white background."""
    with Image.open(path) as image:
        colours = image.convert("RGBA")
    ground = Image.new("RGBA", colours.size, "white")
    ground.alpha_composite(colours)
    return ground.convert("RGB")


def save_copy(kind: str, source: Path, target: Path, rng: random.Random) -> None:
    if kind == "identical":
        shutil.copy(source, target.with_suffix(source.suffix))
        return
    image = open_on_white(source)
    if kind == "mirrored":
        ImageOps.mirror(image).save(target.with_suffix(".png"))
    elif kind == "cropped":
        left, top, right, bottom = (rng.uniform(0, 0.06) for _ in range(4))
        width, height = image.size
        ends = int((1 - right) * width), int((1 - bottom) * height)
        box = (int(left * width), int(top * height), *ends)
        image.crop(box).save(target.with_suffix(".jpg"), quality=90)
    else:
        scale = rng.choice([1.0, rng.uniform(0.4, 1.5)])
        width, height = (max(8, round(scale * side)) for side in image.size)
        filters = [Image.Resampling.LANCZOS, Image.Resampling.BICUBIC]
        image = image.resize((width, height), rng.choice(filters))
        image.save(target.with_suffix(".jpg"), quality=rng.choice([60, 75, 90]))


def plant(folder: Path, count: int, target: Path, seed: int) -> dict[str, str]:
    """Draw images and plant copies of some; returns the kinds of copies by original's number."""
    rng = random.Random(seed)
    files = rng.sample(sorted(path for path in folder.rglob("*.*") if path.is_file()), count)
    for number, path in enumerate(files):
        place = target / ("train" if number % 5 else "test") / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place / f"{number:05d}{path.suffix}")
    originals = rng.sample([number for number in range(count) if number % 5], sum(PLANTED.values()))
    planted: dict[str, str] = {}
    for kind, many in PLANTED.items():
        for number in originals[len(planted) : len(planted) + many]:
            place = target / "test" / files[number].parent.name
            place.mkdir(parents=True, exist_ok=True)
            try:
                save_copy(kind, files[number], place / f"{number:05d}-copy", rng)
            except (OSError, Image.DecompressionBombError):
                continue  # unusable images get no copies
            planted[f"{number:05d}"] = kind
    return planted


def score(audit: Audit, planted: dict[str, str]) -> tuple[Counter[str], list[str]]:
    """Count the planted copies that are found in any pair, by kind, and list all other pairs."""
    found, others = set(), []
    for finding in (finding for kind in COPIES for finding in audit.of(kind)):
        stems = [Path(item.path).stem for item in finding.items]
        copies = {stem.removesuffix("-copy") for stem in stems if stem.endswith("-copy")}
        found |= copies
        if not copies or len({stem.removesuffix("-copy") for stem in stems}) > 1:
            others.append(" = ".join(item.path for item in finding.items))
    return Counter(planted[number] for number in found), others


def check_copies(options: argparse.Namespace, folder: Path) -> list[str]:
    planted = plant(options.images, options.count, folder / "data", options.seed)
    begun = time.perf_counter()
    audit = onsight.check(folder / "data", quick=True, reporter=SilentReporter())
    seconds = time.perf_counter() - begun
    found, others = score(audit, planted)
    counts = Counter(planted.values())
    rows = [[kind, str(counts[kind]), str(found[kind])] for kind in PLANTED]
    print(json.dumps({"found": found, "planted": counts, "others": others}, indent=1))
    return [
        *table(["copies across the split", "planted", "found"], rows),
        "",
        f"{audit.images:,} images were checked in {seconds:.1f} s, without looking at their "
        f"labels. {len(others):,} pairs were found that were not planted.",
    ]


def check_labels(options: argparse.Namespace) -> list[str]:
    rng = np.random.default_rng(options.seed)
    images, labels = read_idx(options.fashion, "train")
    rows = rng.choice(len(labels), options.count, replace=False)
    wrong = rng.choice(options.count, options.wrong, replace=False)
    given = labels[rows].astype(int)
    given[wrong] = (given[wrong] + rng.integers(1, 10, options.wrong)) % 10
    begun = time.perf_counter()
    audit = onsight.check((images[rows], given.tolist()), reporter=SilentReporter())
    seconds = time.perf_counter() - begun
    suspects = [int(finding.items[0].path.split()[-1]) for finding in audit.of("label")][:FIRST]
    right = len(set(suspects) & set(wrong.tolist()))
    return [
        f"Of {options.wrong} wrong labels planted in {options.count:,} images of Fashion-MNIST, "
        f"{right} are among the first {len(suspects)} of {len(audit.of('label'))} suspects "
        f"({seconds:.1f} s). {audit.notes[0][:1].upper()}{audit.notes[0][1:]}.",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--wrong", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fashion", type=Path, default=FASHION)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        lines = check_copies(options, Path(made))
    lines += ["", *check_labels(options)]
    title = f"## Planted faults in images: {options.images.name}"
    write_section(f"check planted {options.images.name}", [title, "", circumstances(), "", *lines])


if __name__ == "__main__":
    main()
