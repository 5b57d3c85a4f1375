"""Which pictures are classified within a budget? Folders with train/CLASS and test/CLASS.

    python benchmarks/picture_sets.py clip-art CACHE [--shrink 320]
    python benchmarks/picture_sets.py wallpapers CACHE [--train 60] [--test 20]
    python benchmarks/picture_sets.py fashion CACHE --per-class 10 50 200

clip-art: Debian's openclipart-png by top-level category. wallpapers: which picture of Debian's
plasma-workspace-wallpapers was this crop cut from? fashion: some pictures of each class of
Fashion-MNIST and its whole test part. Equal arguments give equal pictures, and a folder that
exists already is kept.
"""

import argparse
from pathlib import Path

from clip_art import CLIP_ART, make_clip_art
from decode_photos import WALLPAPERS
from few_pictures import few_per_class
from stand_ins import make_png
from wallpaper_crops import make_wallpaper_crops

FASHION = Path("/usr/share/datasets/fashion-mnist")


def describe(folder: Path) -> str:
    """The counts of each class, for people."""
    lines = [str(folder)]
    totals = [0, 0]
    for place in sorted((folder / "train").iterdir()):
        counts = [len(list((folder / part / place.name).iterdir())) for part in ("train", "test")]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        lines.append(f"  {place.name}: {counts[0]:,} + {counts[1]:,}")
    return "\n".join([*lines, f"  in all {totals[0]:,} for training, {totals[1]:,} for testing"])


def make_clip_art_set(options: argparse.Namespace) -> list[Path]:
    return [make_clip_art(options.source or CLIP_ART, options.cache, options.shrink)]


def make_wallpapers_set(options: argparse.Namespace) -> list[Path]:
    source = options.source or WALLPAPERS
    return [make_wallpaper_crops(source, options.cache, options.train, options.test)]


def make_fashion_sets(options: argparse.Namespace) -> list[Path]:
    whole = make_png(options.source or FASHION, options.cache)
    return [few_per_class(whole, count) for count in options.per_class]


MAKERS = {
    "clip-art": make_clip_art_set,
    "wallpapers": make_wallpapers_set,
    "fashion": make_fashion_sets,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=MAKERS)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--source", type=Path, help="where the originals are")
    parser.add_argument(
        "--shrink", type=int, default=0, help="clip-art: longest side in pixels; 0: as they are"
    )
    parser.add_argument("--train", type=int, default=60, help="wallpapers: crops per class")
    parser.add_argument("--test", type=int, default=20, help="wallpapers: crops per class")
    parser.add_argument("--per-class", type=int, nargs="+", default=[10, 50, 200], help="fashion")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    for folder in MAKERS[options.name](options):
        print(describe(folder))


if __name__ == "__main__":
    main()
