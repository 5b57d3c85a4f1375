"""Where images are kept: the choice, and whole runs on JPEGs made here."""

import json
import os
import shutil
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from augmented import augment
from PIL import Image
from portable import THREADS

import onsight
from onsight.config import make_config
from onsight.data.dataset import open_dataset
from onsight.data.loader import Images
from onsight.data.normalization import Normalization
from onsight.data.sources.find import find_source
from onsight.errors import ConfigError, DataError
from onsight.report.console import SilentReporter
from onsight.step.build import make_augmentation
from onsight.tensorfile import read_tensors
from onsight.training.trainer import Trainer
from onsight.tune import training_data as residency
from onsight.tune.training_data import (
    choose_residency,
    choose_streaming,
    place_images,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
FAST = {
    "epochs": 2,
    "batch_size": 16,
    "threads": THREADS,
    "image_size": "24",
    "crop_area": 0.5,
    "learning_rate": 0.01,
    "reporter": SilentReporter(),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of 60 colour JPEGs each, larger than the model's input, and a broken one."""
    folder, rng = tmp_path_factory.mktemp("residency") / "photos", np.random.default_rng(1)
    for number in range(120):
        path = folder / ("dark" if number % 2 else "light") / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        rough = rng.integers(0, 160, (4, 5, 3), np.uint8) + (0 if number % 2 else 90)
        image = Image.fromarray(rough.astype(np.uint8)).resize((80, 60))
        image.save(path, quality=90)
    (folder / "dark" / "broken.jpg").write_bytes(b"no image")
    return folder


def images_of(nbytes):
    pixels = torch.empty(nbytes, 1, dtype=torch.uint8, device="meta")
    return Images(pixels, torch.arange(2), torch.arange(2), (1, 1, 1))


@pytest.fixture
def room(monkeypatch):
    """Free memory in bytes by kind of device, to be changed by the test."""
    free = {"cpu": 10**9, "cuda": 10**9}
    monkeypatch.setattr(residency, "free_memory_bytes", lambda device: free[device.type])
    return free


def test_auto_takes_the_first_place_with_enough_room(room):
    small, large = images_of(3 * 10**8), images_of(5 * 10**8)
    assert choose_residency(small, GPU).value == "device"
    assert choose_residency(images_of(2 * 10**8), CPU).value == "memory"
    assert choose_residency(large, GPU).value == "map"
    assert choose_residency(large, CPU).value == "map"
    room["cpu"] = 10**10
    assert choose_residency(small, CPU).value == "map"  # which the system keeps in memory
    assert choose_residency(large, GPU).value == "memory"
    choice = choose_residency(small, CPU, ranks=2)
    assert choice.value == "map"
    assert "2 ranks" in choice.reason
    assert choice.figure == 3 * 10**8
    assert choose_residency(small, GPU, ranks=2).value == "device"


@pytest.mark.parametrize("asked", ["memory", "map"])
def test_the_place_asked_for_is_used(room, asked):
    assert choose_residency(images_of(9 * 10**8), GPU, asked).value == asked


def test_residency_device_is_refused_on_the_cpu():
    with pytest.raises(ConfigError, match="auto, memory, map or stream"):
        choose_residency(images_of(5), CPU, "device")


def streaming(photos, cache, **fields):
    config = make_config({"crop_area": 0.5, **fields})
    return choose_streaming(config, find_source(str(photos)), (24, 24), cache)


def test_images_are_streamed_only_if_a_pack_does_not_fit_on_the_disk(photos, tmp_path, monkeypatch):
    asked_of, disk = [], types.SimpleNamespace(free=0)

    def usage(path):
        asked_of.append(Path(path))
        return disk

    monkeypatch.setattr(residency.shutil, "disk_usage", usage)
    needed = 121 * 27 * 27 * 3  # 24 pixels and the room for crops
    for disk.free, expected in [(needed, True), (needed / 0.89, False)]:
        choice = streaming(photos, tmp_path / "not" / "yet")
        assert (choice.value, choice.figure) == (expected, needed)
        assert asked_of.pop() == tmp_path
    disk.free = 0
    assert streaming(photos, None).value
    assert asked_of.pop() == Path(residency.tempfile.gettempdir())
    assert streaming(photos, tmp_path, channels="1").figure == needed / 3
    assert not streaming(photos, tmp_path, residency="map").value
    assert streaming(photos, None, residency="stream").value


def test_a_pack_that_exists_already_needs_no_room(photos, tmp_path, monkeypatch):
    config = make_config({"crop_area": 0.5})
    open_dataset(find_source(str(photos)), config, (24, 24), tmp_path / "c", 1)
    monkeypatch.setattr(residency.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=0))
    assert not streaming(photos, tmp_path / "c").value
    assert streaming(photos, tmp_path / "other").value
    os.utime(photos / "dark" / "001.jpg")  # now it might be another image
    assert streaming(photos, tmp_path / "c").value


def test_a_copy_in_memory_has_the_same_images_in_storage_of_its_own(photos):
    pixels = torch.randint(0, 256, (20, 12), dtype=torch.uint8)
    mapped = Images(pixels, torch.randperm(20), torch.arange(20) % 3, (2, 2, 3))
    placed = place_images(mapped, "memory", CPU)
    ids = torch.tensor([3, 0, 19])
    assert torch.equal(placed.gather(ids).images, mapped.gather(ids).images)
    assert placed.pixels.data_ptr() != pixels.data_ptr()
    assert place_images(mapped, "map", CPU) is mapped


def test_a_copy_for_an_accelerator_is_not_page_locked_only_its_batches_are(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "empty_like", lambda *given, **named: asked.append(named))
    monkeypatch.setattr(torch, "empty", lambda *given, **named: asked.append(named))
    images = Images(torch.zeros(2, 3), torch.arange(2), torch.arange(2), (1, 1, 3))
    placed = place_images(images, "memory", GPU)
    assert torch.equal(placed.pixels, images.pixels)
    assert not asked


def weights_of(run):
    return read_tensors(run.model)[0]


def assert_equal_weights(one, other):
    first, second = weights_of(one), weights_of(other)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def streamed(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    # A module's fixture has neither a test's own cache nor its blank reports.
    fields = {"residency": "stream", "cache_folder": str(folder / "cache"), **FAST}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onsight.report.page.write_report", lambda run: run / "report.html")
        return onsight.train(photos, out=folder / "run", **fields)


def test_streamed_images_are_not_cropped_again(photos):
    fields = {"residency": "stream", "crop_area": 0.5, "flip": False, "translate": 0}
    config = make_config(fields)
    dataset = open_dataset(find_source(str(photos)), config, (24, 24), None, 1)
    batch = dataset.images.gather(torch.arange(9))
    augmentation = make_augmentation(config, dataset)
    scaling = Normalization((0.0,) * 3, (1.0,) * 3)
    inputs, _ = augment(augmentation, batch, 0, 0, scaling, 2)
    assert torch.equal(inputs, scaling.apply(batch.images))
    packed = make_augmentation(config.model_copy(update={"residency": "map"}), dataset)
    (geometry,) = packed.pixel_ops
    assert geometry.crop_area == 0.5


def test_memory_and_map_train_the_same_bits(photos, tmp_path):
    runs = [
        onsight.train(photos, out=tmp_path / one, residency=one, **FAST)
        for one in ("map", "memory")
    ]
    assert_equal_weights(*runs)


def test_a_streamed_run_learns_and_says_that_it_streamed(streamed):
    assert streamed.accuracy >= 0.9
    plan = json.loads((streamed.path / "plan.json").read_text())
    assert plan["images"]["value"] == "stream"
    assert plan["packed_size"]["value"] == [24, 24]
    assert streamed.results["problems"] == 1
    assert list((streamed.path / "gallery").glob("*.png"))


def test_evaluation_and_prediction_of_a_streamed_run_are_bit_equal(streamed, photos, tmp_path):
    results = onsight.evaluate(streamed.path, photos, csv=tmp_path / "again.csv")
    for name in ("accuracy", "loss", "confusion", "images"):
        assert results[name] == streamed.results[name]
    assert results["seen"] == 120 - results["images"]
    lines = (streamed.path / "predictions.csv").read_text()
    assert (tmp_path / "again.csv").read_text() == lines
    rows = [line.split(",") for line in lines.splitlines()[1:]]
    said = onsight.load(streamed.path).predict([photos / row[0] for row in rows])
    assert all(word in row for word, row in zip(said, rows, strict=True))


def test_a_model_of_streamed_images_never_sees_the_thumbnails(photos, tmp_path):
    fields = FAST | {"image_size": "72", "model": "lenet", "epochs": 1}
    fields |= {"residency": "stream", "learning_rate": 1e-4}
    run = onsight.train(photos, out=tmp_path / "run", **fields)
    assert json.loads((run.path / "plan.json").read_text())["packed_size"]["value"] == [64, 64]
    results = onsight.evaluate(run.path, photos, csv=tmp_path / "again.csv")
    assert results["loss"] > 0.1  # otherwise any two would be equal
    assert results["loss"] == run.results["loss"]
    assert (tmp_path / "again.csv").read_text() == (run.path / "predictions.csv").read_text()


def test_a_streamed_run_resumes_as_if_never_stopped(streamed, photos, tmp_path, monkeypatch):
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    lost = sorted((data / "light").glob("*.jpg"))
    end_epoch = Trainer._end_epoch

    def lose_all(trainer, images):
        end_epoch(trainer, images)
        for path in lost:
            path.rename(path.with_suffix(".away"))

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_end_epoch", lose_all)
        with pytest.raises(DataError, match="light/.*when the run began"):
            onsight.train(data, out=tmp_path / "run", residency="stream", **FAST)
    for path in lost:
        path.with_suffix(".away").rename(path)
    with pytest.raises(ConfigError, match="residency would change"):
        onsight.train(
            data, out=tmp_path / "run", resume=True, residency="map", reporter=SilentReporter()
        )
    resumed = onsight.train(data, out=tmp_path / "run", resume=True, reporter=SilentReporter())
    assert_equal_weights(resumed, streamed)


def test_auto_streams_when_the_disk_is_full_and_the_config_says_so(
    streamed, photos, tmp_path, monkeypatch
):
    given = FAST | {"cache_folder": str(tmp_path / "cache")}
    monkeypatch.setattr(residency.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=0))
    run = onsight.train(photos, out=tmp_path / "run", **given)
    assert 'residency = "stream"' in (run.path / "config.toml").read_text()
    assert_equal_weights(run, streamed)
