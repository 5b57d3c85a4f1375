"""Folders with train/CLASS and test/CLASS, to see which images can be classified within a budget.

    python benchmarks/image_sets.py clip-art CACHE [--shrink 320]
    python benchmarks/image_sets.py wallpapers CACHE [--train 60] [--test 20]

clip-art: Debian's openclipart-png by top-level category. wallpapers: crops of Debian's
plasma-workspace-wallpapers; the class is the image that a crop was cut from. The same arguments
give the same images, and existing folders are kept.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from clip_art import CLIP_ART, make_clip_art
from image_files import WALLPAPERS
from wallpaper_crops import make_wallpaper_crops


def describe(folder: Path) -> str:
    """The number of images per class, for the console."""
    lines = [str(folder)]
    totals = [0, 0]
    for place in sorted((folder / "train").iterdir()):
        counts = [len(list((folder / part / place.name).iterdir())) for part in ("train", "test")]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        lines.append(f"  {place.name}: {counts[0]:,} + {counts[1]:,}")
    return "\n".join([*lines, f"  in all {totals[0]:,} for training, {totals[1]:,} for testing"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=("clip-art", "wallpapers"))
    parser.add_argument("cache", type=Path)
    parser.add_argument("--source", type=Path, help="where the originals are")
    parser.add_argument(
        "--shrink", type=int, default=0, help="clip-art: longest side in pixels; 0: unchanged"
    )
    parser.add_argument("--train", type=int, default=60, help="wallpapers: crops per class")
    parser.add_argument("--test", type=int, default=20, help="wallpapers: crops per class")
    options = parser.parse_args(arguments)
    options.cache.mkdir(parents=True, exist_ok=True)
    if options.name == "clip-art":
        folder = make_clip_art(options.source or CLIP_ART, options.cache, options.shrink)
    else:
        source = options.source or WALLPAPERS
        folder = make_wallpaper_crops(source, options.cache, options.train, options.test)
    print(describe(folder))


if __name__ == "__main__":
    main()
