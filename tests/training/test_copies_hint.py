"""One line before training on what a check would show."""

import shutil

import numpy as np
import pytest
from PIL import Image

from onsight.config import make_config
from onsight.data.dataset import open_dataset
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


def opened(data, **fields):
    config = make_config({"folds": "1", **fields})
    return open_dataset(find_source(str(data)), config, (48, 48), None, 1)


def hint(data, **fields):
    dataset = opened(data, **fields)
    return describe_copies(find_copies(dataset), dataset, "pets")


def how_split(data, **fields):
    dataset = opened(data, **fields)
    return explain_split(dataset.units.basis, find_copies(dataset), dataset).reason


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
