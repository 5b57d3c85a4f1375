"""Oracles: a plain run on the same few images, and runs without a first model."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import onsight
from onsight.data.decode import pixel_digest
from onsight.errors import DataError
from onsight.models.file import image_keys, load_model_file
from onsight.report.console import Reporter
from onsight.tensorfile import read_tensors
from onsight.training import first_model, layout
from onsight.tune.candidates import Candidate

HEAD = {"model": "test_resnet", "freeze": True}
CANDIDATES = (
    Candidate("head", HEAD, 0.4, (12, 12), seconds=20.0),  # and a moment to decode
    Candidate("sprint", {"model": "sprint"}, 0.6, (12, 12)),
)
PLAIN = {
    "epochs": 2,
    "batch_size": 16,
    "threads": 1,
    "plan": "default",
    "cache_folder": "none",
    "log": "none",
}


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch):
    monkeypatch.setattr(layout, "choose_candidates", lambda *_: CANDIDATES)
    monkeypatch.setattr(first_model, "_IMAGES", 40)
    monkeypatch.setattr(first_model, "_MIN_WAITING_SECONDS", 20.0)


class InterruptedReporter(Reporter):
    """Ctrl-C arrives as soon as the run decodes its images."""

    @contextmanager
    def bar(self, title, total, unit="images"):
        if title == "decode":
            raise KeyboardInterrupt
        with super().bar(title, total, unit) as bar:
            yield bar


def train(data, out, reporter=None, **fields):
    return onsight.train(data, out=out, reporter=reporter or Reporter(), **{**PLAIN, **fields})


def interrupt(data, out, **fields):
    with pytest.raises(KeyboardInterrupt):
        train(data, out, InterruptedReporter(), **fields)


def tensors_of(path):
    return read_tensors(path / "model.safetensors")[0]


def assert_same_tensors(mine, other):
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def printed(capsys):
    return " ".join(capsys.readouterr().err.split())


def link_seen(data: Path, model: Path, folder: Path) -> list[str]:
    """Link the images that a model has seen into a class folder; return their classes."""
    seen = set(np.asarray(load_model_file(model).seen).tolist())
    classes = []
    for path in sorted(data.glob("*/*.png")):
        pixels = np.asarray(Image.open(path))[:, :, None]
        digest = np.frombuffer(pixel_digest(pixels), np.uint8)[None]
        if np.asarray(image_keys(digest)).item() in seen:
            link = folder / path.relative_to(data)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
            classes.append(path.parent.name)
    return classes


def test_an_interruption_while_decoding_leaves_the_head_of_a_few_images(bars, tmp_path, capsys):
    run = tmp_path / "run"
    interrupt(bars, run)
    text = printed(capsys)
    assert "first model: a head fitted on 40 of 120 images, in" in text
    assert "the best model so far is in" in text
    assert f"to continue, repeat the command with --out {run} --resume" in text
    classes = link_seen(bars, run, tmp_path / "few")
    assert len(classes) == 40
    assert set(classes) == {"across", "down"}
    fields = {**HEAD, "image_size": 12, "flip": False, "folds": 1, "test_fraction": 0}
    plain = train(tmp_path / "few", tmp_path / "plain", **fields)
    assert_same_tensors(load_model_file(run).weights, load_model_file(plain.path).weights)
    assert onsight.evaluate(run, bars)["accuracy"] > 0.7


def test_the_run_does_not_depend_on_the_first_model(bars, tmp_path, monkeypatch, capsys):
    caches = [tmp_path / name for name in ("cache", "other")]
    run = train(bars, tmp_path / "run", cache_folder=str(caches[0]))
    assert "first model" in printed(capsys)
    monkeypatch.setattr(first_model, "_MIN_WAITING_SECONDS", 21.0)
    without = train(bars, tmp_path / "without", cache_folder=str(caches[1]))
    assert "first model" not in printed(capsys)
    assert_same_tensors(tensors_of(run.path), tensors_of(without.path))
    assert run.results["confusion"] == without.results["confusion"]
    files = [
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "run", tmp_path / "without")
    ]
    assert files[0] == files[1]
    kept = [sorted(path.name for path in cache.glob("features/*")) for cache in caches]
    assert kept[0] == kept[1]
    assert [len([*cache.glob("packs/*")]) for cache in caches] == [1, 1]


def test_a_run_that_is_resumed_or_reopens_its_images_needs_no_first_model(bars, tmp_path, capsys):
    cache, run = tmp_path / "cache", tmp_path / "run"
    interrupt(bars, run, cache_folder=str(cache))
    assert "first model" in printed(capsys)
    onsight.train(
        bars, out=run, resume=True, cache_folder=str(tmp_path / "cache"), reporter=Reporter()
    )
    assert "first model" not in printed(capsys)
    interrupt(bars, tmp_path / "again", cache_folder=str(cache))
    assert "first model" not in printed(capsys)


@pytest.mark.parametrize("error", [DataError("no images"), torch.OutOfMemoryError("no room")])
def test_a_first_model_that_fails_does_not_end_the_run(bars, tmp_path, monkeypatch, capsys, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(first_model, "open_data", fail)
    interrupt(bars, tmp_path / "run")  # it goes on to decode all images
    assert f"there is no first model: {error}" in printed(capsys)


@pytest.mark.parametrize(
    ("fields", "limits", "is_made"),
    [
        ({}, {}, True),
        ({}, {"_MIN_WAITING_SECONDS": 21.0}, False),
        ({"budget": "2m"}, {}, True),
        ({"budget": "119s"}, {}, False),  # too short
        ({"loss": "mse"}, {}, False),  # a head for it is not fitted
    ],
)
def test_a_first_model_is_made_if_it_saves_waiting(
    bars, tmp_path, monkeypatch, fields, limits, is_made
):
    made = []
    monkeypatch.setattr(first_model, "_fit_first_model", lambda *_: made.append(1) or 40)
    for name, limit in limits.items():
        monkeypatch.setattr(first_model, name, limit)
    interrupt(bars, tmp_path / "run", **{"epochs": "auto", **fields})
    assert bool(made) is is_made


def test_a_first_model_needs_no_test_images(bars, tmp_path):
    for split, numbers in {"test": range(20), "val": range(20, 30), "train": range(30, 60)}.items():
        for kind in ("across", "down"):
            (tmp_path / "split" / split / kind).mkdir(parents=True)
            for number in numbers:
                name = f"{number:03d}.png"
                (bars / kind / name).rename(tmp_path / "split" / split / kind / name)
    interrupt(tmp_path / "split", tmp_path / "run")
    classes = link_seen(tmp_path / "split" / "train", tmp_path / "run", tmp_path / "few")
    half = 30  # of the training images, which is fewer than 40
    assert len(classes) == len(load_model_file(tmp_path / "run").seen) == half
