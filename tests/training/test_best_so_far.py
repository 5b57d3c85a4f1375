"""Oracles: the weights of the best epoch, and what is evaluated with the model file."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import onsight
from onsight.config import Config
from onsight.evaluation.predictions import HeldOutLogits
from onsight.models.file import load_model_file
from onsight.report.console import Reporter
from onsight.tensorfile import read_tensors
from onsight.training import model_file
from onsight.training.listener import Listener
from onsight.training.model_file import BestSoFar

COMPACT = {
    "model": "compact",
    "plan": "default",
    "threads": 1,
    "batch_size": 16,
    "cache_folder": "none",
    "log": "none",
}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(model_file, "_SECONDS_BETWEEN", 0.0)


@pytest.fixture
def interrupt(monkeypatch):
    """Return a function that trains until Ctrl-C arrives as an epoch is reported."""

    def train(data, out, epoch, **fields):
        def finish_epoch(listener, row):
            if row["epoch"] == epoch:
                raise KeyboardInterrupt

        monkeypatch.setattr(Listener, "epoch_finished", finish_epoch)
        with pytest.raises(KeyboardInterrupt):
            onsight.train(data, out=out, reporter=Reporter(), **COMPACT, **fields)

    return train


def test_a_training_that_is_stopped_leaves_the_model_of_its_best_epoch(bars, tmp_path, interrupt):
    run = tmp_path / "run"
    interrupt(bars, run, 6, epochs=6, folds=1)
    best, _ = read_tensors(run / "checkpoints" / "best.safetensors")
    left = load_model_file(run)
    assert left.results["split"] == "validation"
    assert left.weights.keys() == best.keys()
    assert all(torch.equal(left.weights[name], best[name]) for name in best)
    assert onsight.evaluate(run, bars)["accuracy"] > 0.6


def test_the_networks_of_folds_are_not_models_of_the_run(bars, tmp_path, interrupt):
    interrupt(bars, tmp_path / "run", 3, epochs=3, folds=2)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def tabulate(correct, images):
    """Make the predictions of a classifier that is right on so many of the images."""
    labels = torch.ones(images, dtype=torch.long)
    predicted = torch.where(torch.arange(images) < correct, labels, 0)
    logits = F.one_hot(predicted, 2).float()
    return HeldOutLogits(torch.arange(images), logits, labels).tabulate()


def test_a_model_is_replaced_by_one_that_is_surely_better(trained, tmp_path, monkeypatch):
    file, path = load_model_file(trained.path), tmp_path / "model.safetensors"
    monkeypatch.setattr(
        model_file, "make_model_file", lambda *parts: replace(file, results=parts[3])
    )

    def offer(correct, images):
        best.replace_if_better(None, tabulate(correct, images))
        return load_model_file(path).results["images"] == images

    def begin():
        return BestSoFar(path, Config(), SimpleNamespace(classes=("across", "down")), {})

    best = begin()
    assert offer(9, 10)  # 90%, but perhaps only 60%
    best = begin()
    assert not offer(110, 200)  # 55%
    assert offer(170, 200)  # 85%, which is worth more than 90% of 10 images
    assert not offer(8, 9)
    monkeypatch.setattr(model_file, "_SECONDS_BETWEEN", 1e9)
    assert not offer(299, 300)  # too soon


def test_a_damaged_model_is_replaced(trained, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"not a model")
    file = load_model_file(trained.path)
    monkeypatch.setattr(model_file, "make_model_file", lambda *_: file)
    best = BestSoFar(path, Config(), SimpleNamespace(classes=("across", "down")), {})
    best.replace_if_better(None, tabulate(1, 10))
    assert load_model_file(path).classes == file.classes
