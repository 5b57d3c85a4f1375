"""The image sets that benchmarks/auto_datasets.py makes: what is drawn and what is left out."""

import shutil
import string
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageFont

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import auto_datasets
from letter_fonts import TEST_FONTS, TRAINING_FONTS, font_paths

DEJAVU = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.png")}


def test_test_fonts_are_from_other_packages_and_no_font_is_named_twice():
    assert not TRAINING_FONTS.keys() & TEST_FONTS.keys()
    lines = [*TRAINING_FONTS.values(), *TEST_FONTS.values()]
    stems = [path.stem for line in lines for path in font_paths(line)]
    assert len(stems) == len(set(stems)) == 77 + 29


def test_each_letter_is_drawn_twice_for_each_font_and_the_same_in_each_run(tmp_path, monkeypatch):
    monkeypatch.setattr(auto_datasets, "TRAINING_FONTS", {"a package": "its font"})
    monkeypatch.setattr(auto_datasets, "TEST_FONTS", {"another": "its font"})
    monkeypatch.setattr(auto_datasets, "font_paths", lambda line: [DEJAVU])
    auto_datasets.letters(tmp_path / "one")
    auto_datasets.letters(tmp_path / "two")
    found = contents(tmp_path / "one")
    assert found == contents(tmp_path / "two")
    assert found.keys() == {
        Path(part, letter, f"DejaVuSans-{copy}.png")
        for part in ("train", "test")
        for letter in string.ascii_lowercase
        for copy in (0, 1)
    }
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("letter", ["w", "l", "o"])
def test_all_of_a_letter_is_in_its_image(letter, monkeypatch):
    """In white on black, at any place and angle, its area is that of the glyph, made smaller."""
    font = ImageFont.truetype(DEJAVU, 200)
    glyph = np.asarray(font.getmask(letter), float).reshape(font.getmask(letter).size[::-1]) / 255
    longer_side = auto_datasets.LETTER_SIZE * 0.8
    area = glyph.sum() * (longer_side / max(glyph.shape)) ** 2
    monkeypatch.setattr(auto_datasets, "LONGER_SIDES", (0.8, 0.8))
    monkeypatch.setattr(auto_datasets, "MAX_BLUR", 0)
    monkeypatch.setattr(auto_datasets, "MAX_NOISE", 0)
    white_on_black = np.array([[255.0] * 3, [0.0] * 3])
    monkeypatch.setattr(auto_datasets, "draw_colours", lambda generator: white_on_black)
    generator = np.random.default_rng(0)
    for _ in range(20):
        image = auto_datasets.print_letter(letter, font, generator)
        assert image.size == (32, 32)
        assert np.asarray(image).mean(axis=2).sum() / 255 == pytest.approx(area, rel=0.03)


def test_ink_and_background_differ_in_lightness():
    generator = np.random.default_rng(0)
    for _ in range(100):
        ink, background = auto_datasets.draw_colours(generator)
        assert abs(ink.mean() - background.mean()) >= 70


def test_stamps_are_the_large_categories_without_copies_and_mirrored_variants(
    tmp_path, monkeypatch
):
    source = tmp_path / "stamps"
    for category, count in (("animals", 30), ("food", 30), ("space", 29)):
        for number in range(count):
            path = source / category / "small" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGBA", (20, 10), (number, len(category), 0, 9)).save(path)
    animals = source / "animals"
    shutil.copyfile(animals / "small" / "3.png", source / "food" / "copy.png")
    Image.new("L", (5, 5)).save(animals / "small" / "3_mirror.png")
    Image.new("L", (6, 6)).save(animals / "hall_mirror.png")
    Image.new("LA", (1024, 600)).save(source / "food" / "large.png")
    (animals / "drawing.svg").write_text("<svg/>")
    monkeypatch.setattr(auto_datasets, "STAMPS", source)
    auto_datasets.stamps(tmp_path / "made")
    assert contents(tmp_path / "made").keys() == {
        *(
            Path(name, f"small-{number}.png")
            for name in ("animals", "food")
            for number in range(30)
        ),
        Path("animals", "hall_mirror.png"),
        Path("food", "large.png"),
    }
    with Image.open(tmp_path / "made" / "food" / "large.png") as large:
        assert (large.size, large.mode) == ((512, 300), "LA")
