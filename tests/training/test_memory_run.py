"""Runs on DATA in memory. Oracle: the same images as PNGs in class folders."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset
from torchvision.datasets import ImageFolder

import onsight
from onsight.errors import ConfigError, DataError, OutputError
from onsight.explainer.explain_run import data_of_run
from onsight.report.console import SilentReporter
from onsight.report.page import repeat_command
from onsight.tensorfile import read_tensors

FAST = {"epochs": 2, "batch_size": 16, "threads": 1, "plan": "default", "model": "linear"}


def train(data, **fields):
    return onsight.train(data, reporter=SilentReporter(), **FAST | fields)


def arrays_of(folder):
    paths = sorted(folder.rglob("*.png"))
    return np.stack([np.asarray(Image.open(path)) for path in paths]), [
        path.parent.name for path in paths
    ]


def assert_equal_weights(one, other):
    (first, _), (second, _) = (read_tensors(run.model) for run in (one, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_dataset_a_pair_and_the_folder_give_the_same_bits(shared_bars, tmp_path):
    folder = train(shared_bars, out=tmp_path / "folder", epochs=1)
    images, names = arrays_of(shared_bars)
    pair = train((images, names), out=tmp_path / "pair", epochs=1, cache_folder="none")
    assert_equal_weights(folder, pair)
    assert pair.results["confusion"] == folder.results["confusion"]
    shuffled = np.random.default_rng(0).permutation(len(names))
    tensors = torch.from_numpy(images[shuffled, None] / np.float32(255))
    numbers = torch.tensor([["across", "down"].index(names[row]) for row in shuffled])
    items = train(TensorDataset(tensors, numbers), out=tmp_path / "tensors", epochs=1)
    assert_equal_weights(folder, items)


def test_the_run_says_where_its_data_was(shared_bars, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = train(arrays_of(shared_bars))
    assert run.path.name == "arrays"
    assert run.results["data"] == "arrays in memory (120)"
    assert run.results["found"] == "arrays in memory, 2 classes, 120 images"
    assert repeat_command(run.path, run.results["data"]) is None
    assert repeat_command(run.path, str(shared_bars)) is not None
    with pytest.raises(OutputError, match="trained on arrays in memory .120., which no command"):
        data_of_run(run.path, "auto")


def test_arrays_are_decoded_once_and_again_when_they_change(shared_bars, tmp_path):
    class Lines(SilentReporter):
        said = ""

        def say(self, text):
            self.said += text

    def said(images):
        reporter = Lines()
        reporter.verbose = True
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        onsight.train((images, names), out=out, reporter=reporter, **FAST | {"epochs": 1})
        return reporter.said

    images, names = arrays_of(shared_bars)
    assert "images are decoded" in said(images)
    assert "images are reopened from the cache" in said(images)
    images[7, 3, 3] ^= 1
    assert "images are decoded" in said(images)


def test_a_run_resumes_with_the_same_arrays_only(shared_bars, tmp_path):
    images, names = arrays_of(shared_bars)
    out = tmp_path / "run"
    run = train((images, names), out=out)
    train((images, names), out=out, resume=True)
    assert run.path == out
    images[7, 3, 3] ^= 1
    with pytest.raises(DataError, match="the images changed"):
        train((images, names), out=out, resume=True)


def test_images_in_memory_are_not_sent_to_other_ranks(shared_bars, tmp_path):
    with pytest.raises(ConfigError, match="images in memory cannot be sent to other processes"):
        train(arrays_of(shared_bars), out=tmp_path / "run", ranks=2)
    assert not (tmp_path / "run").exists()


def test_evaluation_takes_the_same_forms(trained, bars):
    rng = np.random.default_rng(5)
    folder = bars.parent / "new"
    for path in bars.rglob("*.png"):
        pixels = np.asarray(Image.open(path)) ^ rng.integers(0, 2, (12, 12), np.uint8)
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / path.parent.name / path.name)
    expected = onsight.evaluate(trained.path, folder)
    images, names = arrays_of(folder)
    items = list(zip(images, names, strict=True))
    for data in ((images, names), items):
        found = onsight.evaluate(trained.path, data)
        assert found["confusion"] == expected["confusion"]
        assert found["accuracy"] == expected["accuracy"]


def test_a_random_transform_becomes_a_note_of_the_run(shared_bars, tmp_path):
    torch.manual_seed(0)
    noisy = ImageFolder(str(shared_bars), transform=lambda image: torch.rand(1, 12, 12))
    run = train(noisy, out=tmp_path / "run", epochs=1)
    assert any("its transform is random" in note for note in run.results["notes"])
