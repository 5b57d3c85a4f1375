"""One line before training on what a check would show."""

import shutil

import numpy as np
import pytest
from PIL import Image

from onsight.config import make_config
from onsight.data.dataset import open_dataset
from onsight.data.duplicates import near
from onsight.data.sources.find import find_source
from onsight.training.open_data import describe_copies, explain_split, find_copies


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


def opened(data, side=48, **fields):
    config = make_config({"folds": "1", **fields})
    return open_dataset(find_source(str(data)), config, (side, side), None, 1)


def hint(data, **fields):
    dataset = opened(data, **fields)
    return describe_copies(find_copies(dataset, None), dataset, "pets")


def how_split(data, **fields):
    dataset = opened(data, **fields)
    return explain_split(dataset.units.basis, find_copies(dataset, None), dataset).reason


def test_nothing_is_said_of_images_without_copies(data):
    assert hint(data) == ""


def test_copies_are_counted_and_the_command_is_named(data):
    shutil.copy(data / "a/0.png", data / "a/same.png")
    image(1, 30).save(data / "b/near.png")
    said = hint(data)
    assert said.startswith(
        "1 identical copy and 1 near-duplicate pair: `onsight check pets` shows them"
    )
    assert "keeps near-duplicates on one side" in said


def test_known_near_duplicates_are_not_searched_again(data):
    image(1, 30).save(data / "b/near.png")
    assert hint(data, split_near_duplicates="together") == ""


@pytest.fixture
def searches(monkeypatch):
    """The searches for near-duplicates."""
    made, real = [], near._find
    monkeypatch.setattr(near, "_find", lambda *given: [made.append(given), real(*given)][1])
    return made


def paths_of_pairs(data, cache, side=48):
    dataset = opened(data, side)
    pairs = find_copies(dataset, cache).near_duplicates
    return [{dataset.pack.index.locators[number] for number in pair} for pair in pairs]


def test_the_same_images_are_searched_once(data, tmp_path, searches):
    for number in (1, 2, 3):
        image(number, 30).save(data / f"a/near{number}.png")
    found = paths_of_pairs(data, tmp_path / "cache")
    assert len(found) == 3
    shutil.copytree(data, tmp_path / "moved")
    for number in range(20):  # copies, which are not searched, but change the numbers of others
        shutil.copy(data / "a" / f"{2 * number}.png", tmp_path / "moved/a" / f"copy{number}.png")
    assert paths_of_pairs(tmp_path / "moved", tmp_path / "cache") == found
    assert len(searches) == 1


def test_other_images_or_another_size_are_searched_again(data, tmp_path, searches):
    cache = tmp_path / "cache"
    assert paths_of_pairs(data, cache) == []
    assert paths_of_pairs(data, cache, side=32) == []
    image(1, 30).save(data / "a/near.png")
    assert paths_of_pairs(data, cache) == [{"a/near.png", "b/1.png"}]
    assert len(searches) == 3


@pytest.mark.parametrize("text", ["{}", "[[1]]", "[[1, 99999]]", "[[-1, 2]]", '[["a", 1]]', "no"])
def test_pairs_that_cannot_be_read_are_searched_again(data, tmp_path, text, searches):
    image(1, 30).save(data / "a/near.png")
    found = paths_of_pairs(data, tmp_path / "cache")
    (path,) = (tmp_path / "cache/duplicates").iterdir()
    path.write_text(text)
    assert paths_of_pairs(data, tmp_path / "cache") == found
    assert len(searches) == 2


def test_held_out_images_that_are_like_training_images_are_counted(tmp_path):
    for split in ("train", "test"):
        for number in range(20):
            place = tmp_path / split / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            is_copy = split == "test" and number in (3, 4, 8)
            shown = number if is_copy or split == "train" else 100 + number
            image(shown, 30 if is_copy else 60).save(place / f"{number}.png")
    said = how_split(tmp_path, validation_fraction=0)
    assert said == (
        "identical images stay together; of 20 held-out images, 3 are near-duplicates of "
        "training images"
    )
    assert "near-duplicates of training" not in how_split(
        tmp_path, split_near_duplicates="together"
    )


def test_nothing_held_out_is_like_nothing(data):
    assert (
        how_split(data, validation_fraction=0, test_fraction=0) == "identical images stay together"
    )
