"""The images that look like others: what training says of them, and that a check finds the same."""

import shutil

import numpy as np
import pytest
from PIL import Image

import onsight
from onsight.config import make_config
from onsight.data import split_units
from onsight.data.dataset import open_dataset
from onsight.data.duplicates import near
from onsight.data.sources.find import find_source
from onsight.report.console import SilentReporter
from onsight.training.open_data import describe_copies


def image(seed: int, side: int = 48) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (5, 5, 3), np.uint8)
    return Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR)


@pytest.fixture
def data(tmp_path):
    for number in range(40):
        place = tmp_path / "data" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        image(number).save(place / f"{number}.png")
    return tmp_path / "data"


def opened(data, side=48, cache=None, **fields):
    config = make_config({"folds": "1", **fields})
    return open_dataset(find_source(str(data)), config, (side, side), cache, 1)


def hint(data, **fields):
    return describe_copies(opened(data, **fields), "pets")


def test_nothing_is_said_of_images_without_copies(data):
    assert hint(data) == ""


def test_copies_are_counted_and_the_command_is_named(data):
    shutil.copy(data / "a/0.png", data / "a/same.png")
    image(1, 30).save(data / "b/near.png")
    assert hint(data) == (
        "1 identical copy and 1 near-duplicate pair, kept on one side of the split: "
        "`onsight check pets` shows them"
    )
    assert hint(data, split_near_duplicates="apart").startswith("1 identical copy, kept")


def test_a_check_shows_the_pairs_that_training_keeps_together(data):
    for number in (1, 2, 3):
        image(number, 30).save(data / f"a/near{number}.png")
    audit = onsight.check(data, quick=True, image_size="48", reporter=SilentReporter())
    kinds = {finding.kind for finding in audit.findings}
    copies = [finding for finding in audit.findings if "near-duplicate" in finding.description]
    assert opened(data).units.near_duplicates == len(copies) == 3, kinds


@pytest.fixture
def searches(monkeypatch):
    """The searches for near-duplicates."""
    made, real = [], near._find
    monkeypatch.setattr(near, "_find", lambda *given: [made.append(given), real(*given)][1])
    return made


def pairs(data, cache, side=48):
    pack = opened(data, side).pack
    names = pack.index.locators
    return [
        ({names[pair.first], names[pair.second]}, *pair[2:])
        for pair in near.find_near_duplicates(pack, cache)
    ]


def test_the_same_images_are_searched_once(data, tmp_path, monkeypatch, searches):
    monkeypatch.setattr(split_units, "MAX_SEARCHED", 0)
    for number in (1, 2, 3):
        image(number, 30).save(data / f"a/near{number}.png")
    found = pairs(data, tmp_path / "cache")
    assert len(found) == 3
    shutil.copytree(data, tmp_path / "moved")
    for number in range(20):  # copies, which are not searched, but change the numbers of others
        shutil.copy(data / "a" / f"{2 * number}.png", tmp_path / "moved/a" / f"copy{number}.png")
    assert pairs(tmp_path / "moved", tmp_path / "cache") == found
    assert len(searches) == 1


def test_other_images_or_another_size_are_searched_again(data, tmp_path, monkeypatch, searches):
    monkeypatch.setattr(split_units, "MAX_SEARCHED", 0)
    cache = tmp_path / "cache"
    assert pairs(data, cache) == []
    assert pairs(data, cache, side=32) == []
    image(1, 30).save(data / "a/near.png")
    assert [pair[0] for pair in pairs(data, cache)] == [{"a/near.png", "b/1.png"}]
    assert len(searches) == 3


WRONG = ["{}", "[[1]]", '[[1, 99999, "cropped", 1]]', '[[-1, 2, "cropped", 1]]', "no"]


@pytest.mark.parametrize("text", [*WRONG, '[[1, 2, "stretched", 1]]', '[["a", 1, "cropped", 1]]'])
def test_pairs_that_cannot_be_read_are_searched_again(data, tmp_path, text, monkeypatch, searches):
    monkeypatch.setattr(split_units, "MAX_SEARCHED", 0)
    image(1, 30).save(data / "a/near.png")
    found = pairs(data, tmp_path / "cache")
    (path,) = (tmp_path / "cache/duplicates").iterdir()
    path.write_text(text)
    assert pairs(data, tmp_path / "cache") == found
    assert len(searches) == 2
