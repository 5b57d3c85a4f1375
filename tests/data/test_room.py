"""Images kept larger than the model's input, so that crops keep their detail."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from augmented import augment
from PIL import Image

import onsight
from onsight.config import make_config
from onsight.data import transforms
from onsight.data.augment import Augmentation
from onsight.data.dataset import open_dataset
from onsight.data.loader import Batch
from onsight.data.normalization import Normalization
from onsight.data.sizes import choose_packed_size, choose_size
from onsight.data.sources.find import find_source
from onsight.models.file import load_model_file
from onsight.report.console import SilentReporter

PLAIN = Normalization((0.0,) * 3, (1.0,) * 3, (28, 28))
FAST = {
    "epochs": 1,
    "batch_size": 16,
    "threads": 1,
    "image_size": "28",
    "reporter": SilentReporter(),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of 30 colour JPEGs of 60 x 80 pixels each."""
    folder, rng = tmp_path_factory.mktemp("room") / "photos", np.random.default_rng(1)
    for number in range(60):
        path = folder / ("dark" if number % 2 else "light") / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        rough = rng.integers(0, 160, (4, 5, 3)) + (0 if number % 2 else 90)
        Image.fromarray(rough.astype(np.uint8)).resize((80, 60)).save(path, quality=90)
    return folder


def packed_size(photos, size, **fields):
    return choose_packed_size(find_source(str(photos)), size, make_config(fields)).value


def test_crops_get_an_eighth_more_each_side_where_the_images_have_it(photos):
    assert packed_size(photos, (224, 224)) == (224, 224)
    assert packed_size(photos, (28, 35), crop_area=0.5) == (32, 40)
    assert packed_size(photos, (60, 60), crop_area=0.5) == (60, 60)
    assert packed_size(photos, (52, 52), crop_area=0.5) == (59, 59)
    assert packed_size(photos, (128, 64), residency="stream") == (64, 32)
    assert packed_size(photos, (28, 28), residency="stream") == (28, 28)


def test_a_source_is_looked_at_once_for_all_choices_of_a_size(photos):
    source, read = find_source(str(photos)), []
    counting = replace(source, read=lambda row: (read.append(row), source.read(row))[1])
    config = make_config({"crop_area": 0.5})
    assert choose_size(counting, None, None).value == (64, 64)
    assert choose_packed_size(counting, (28, 28), config).value == (32, 32)
    assert read == list(range(60))
    read.clear()
    assert open_dataset(counting, config, (28, 28), None, 1).packed_size.value == (32, 32)
    assert sorted(read) == list(range(60))  # each image once, to decode it


def opened(photos, **fields):
    return open_dataset(find_source(str(photos)), make_config(fields), (28, 28), None, 1)


def test_room_changes_the_pack_and_neither_input_nor_split(photos):
    plain, roomy = opened(photos), opened(photos, crop_area=0.5)
    assert plain.pack.pixels.shape[1:] == (28, 28, 3)
    assert roomy.pack.pixels.shape[1:] == (32, 32, 3)
    assert plain.input_shape == roomy.input_shape == (3, 28, 28)
    assert np.array_equal(plain.pack.digests, roomy.pack.digests)
    assert np.array_equal(plain.splits, roomy.splits)
    assert "input_size" not in plain.format.facts()  # so that its pack's key stays the same


def test_the_whole_seen_from_the_room_is_nearly_the_whole_seen_directly(photos):
    ids = torch.arange(60)
    direct, roomy = (opened(photos, **f).images.gather(ids) for f in ({}, {"crop_area": 0.5}))
    seen = PLAIN.apply(roomy.images) * 255
    assert seen.shape == (60, 3, 28, 28)
    off = (seen - direct.images.permute(0, 3, 1, 2)).abs()
    assert off.mean() < 2  # grey values


def test_images_of_the_inputs_size_are_not_touched():
    images = torch.randint(0, 256, (3, 28, 28, 3), dtype=torch.uint8)
    sizeless = Normalization(PLAIN.mean, PLAIN.std)
    assert torch.equal(PLAIN.apply(images), sizeless.apply(images))


def test_a_warp_to_another_size_samples_the_same_window():
    ramp = torch.arange(64.0, dtype=torch.float64).view(1, 64, 1, 1).expand(1, 64, 64, 1)
    half = torch.full((1,), 0.5, dtype=torch.float64)
    nothing = torch.zeros_like(half)
    numbers = (half, half, half / 2, nothing, nothing, nothing.bool())
    out = transforms.warp(ramp, *numbers, (16, 20))
    assert out.shape == (1, 16, 20, 1)
    # The window spans 24 to 56 of 64 pixels; 16 rows of 2 pixels, centres between two.
    expected = 24 + 2 * torch.arange(16, dtype=torch.float64) + 0.5
    assert torch.allclose(out[0, :, 3, 0], expected, atol=1e-9)


def test_training_images_come_out_at_the_inputs_size():
    images = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8)
    labels = torch.arange(4)
    batch = Batch(images, labels, labels, labels)
    augmentation = Augmentation.of(flip=True, crop_area=0.4, cutmix=1.0, input_size=(28, 24))
    scaling = Normalization(PLAIN.mean, PLAIN.std)
    inputs, targets = augment(augmentation, batch, 1, 2, scaling, 4)
    assert inputs.shape == (3, 3, 28, 24)
    assert targets.shape == (3, 4)


def test_a_run_with_room_is_evaluated_and_predicts_to_the_bit(photos, tmp_path):
    run = onsight.train(photos, out=tmp_path / "run", crop_area=0.5, model="lenet", **FAST)
    preprocessing = load_model_file(run.model).preprocessing
    assert (preprocessing.input_size, preprocessing.height) == ((28, 28), 32)
    results = onsight.evaluate(run.path, photos, csv=tmp_path / "again.csv")
    assert results["loss"] == run.results["loss"]
    assert (tmp_path / "again.csv").read_text() == (run.path / "predictions.csv").read_text()
