"""Unlike images from training to prediction: ranks agree, strangers flagged, files and lines."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from rank_in_thread import RankInThread
from torch import nn

import onsight
from onsight.data.loader import Images
from onsight.data.normalization import Normalization
from onsight.evaluation.out_of_distribution import choose_detector
from onsight.features.feature_pass import logits_and_features
from onsight.inference.predict import OutputOptions, predict_files
from onsight.models.classifier import Classifier
from onsight.models.file import load_model_file, save_model
from onsight.ranks.world import World
from onsight.step.calibrate import fit_detector_on_images

CPU = torch.device("cpu")


def task(net=None):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (90, 12), dtype=torch.uint8, generator=generator)
    images = Images(pixels, torch.arange(90), torch.zeros(90, dtype=torch.int64), (2, 2, 3))
    torch.manual_seed(0)
    net = net or nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, 2))
    return Classifier(net, Normalization((0.5,) * 3, (1.0,) * 3), "fp32", CPU), images


def test_ranks_share_the_work_and_tell_alike():
    alone, images = task()
    seen, held_out = torch.arange(0, 60), torch.arange(60, 90)
    choice = fit_detector_on_images(alone, images, seen, held_out, World())
    batch = images.pixels.view(-1, 2, 2, 3)
    features = logits_and_features(alone, batch)[1]
    expected = choose_detector(features[:60], features[60:])
    assert choice.reason == expected.reason == "set on 30 validation images"
    assert choice.value.threshold == pytest.approx(expected.value.threshold, abs=1e-6)
    classifiers = [task()[0] for _ in range(2)]

    def tell(rank):
        return fit_detector_on_images(classifiers[rank], images, seen, held_out, RankInThread(rank))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(tell, range(2))
    assert first.value.threshold == second.value.threshold
    assert torch.equal(first.value.bank, second.value.bank)
    assert first.value.threshold == pytest.approx(choice.value.threshold, abs=1e-6)


def test_a_network_without_features_says_so():
    net = nn.Sequential(nn.Conv2d(3, 2, 2), nn.Flatten())
    classifier, images = task(net)
    choice = fit_detector_on_images(
        classifier, images, torch.arange(60), torch.arange(60, 90), World()
    )
    assert (choice.value, classifier.out_of_distribution) == (None, None)
    assert "does not end in a linear layer" in choice.reason
    nobody = fit_detector_on_images(classifier, images, torch.arange(60), torch.arange(0), World())
    assert nobody.reason.startswith("0 validation images")


@pytest.fixture(scope="module")
def told(shared_bars, train_once):
    """A run on the bars with enough validation images for a threshold."""
    fields = {"epochs": 3, "batch_size": 16, "threads": 1, "plan": "default"}
    fields |= {"validation_fraction": 0.3, "test_fraction": 0.2}
    return train_once("told", shared_bars, **fields)


def test_a_run_keeps_its_threshold_and_checks_it_on_the_test_images(told):
    result = told.results["out_of_distribution"]
    stored = load_model_file(told.path).out_of_distribution
    assert result["threshold"] == stored.threshold
    assert (
        result["held_out"]
        == stored.images
        == told.results["classes"][0]["validation_images"]
        + told.results["classes"][1]["validation_images"]
    )
    assert result["images"] == told.results["images"]
    page = (told.path / "report.html").read_text()
    assert "Out-of-distribution threshold" in page


def test_what_is_above_the_threshold_is_named_in_every_listing(told, shared_bars, tmp_path, capfd):
    """A threshold between the scores of some images, planted in the file."""
    paths = [str(path) for path in sorted(shared_bars.rglob("*.png"))[::12]]
    scores = [one.score for one in onsight.load(told.path).predictions(paths)]
    threshold = float(np.median(scores))
    file = load_model_file(told.path)
    model = tmp_path / "model.safetensors"
    save_model(
        model,
        replace(file, out_of_distribution=replace(file.out_of_distribution, threshold=threshold)),
    )
    above = [score > threshold for score in scores]
    assert sum(above) == len(paths) // 2
    predict_files(model, paths, OutputOptions())
    lines = capfd.readouterr().out.splitlines()
    assert [line.endswith("(out of distribution)") for line in lines] == above
    predict_files(model, paths, OutputOptions(as_json=True))
    rows = json.loads(capfd.readouterr().out)["predictions"]
    assert [row["out_of_distribution"] for row in rows] == above
    assert [row["score"] for row in rows] == scores
    predict_files(model, paths, OutputOptions(csv="-"))
    header, *table = capfd.readouterr().out.splitlines()
    assert header == "path,predicted,probability,problem,out_of_distribution,score"
    assert [",,true," in row for row in table] == above
    predictions = onsight.load(model).predictions(paths, features=True)
    assert [(one.out_of_distribution, one.score) for one in predictions] == list(
        zip(above, scores, strict=True)
    )


def test_a_file_without_a_threshold_says_nothing(told, shared_bars, tmp_path, capfd):
    model = tmp_path / "model.safetensors"
    save_model(model, replace(load_model_file(told.path), out_of_distribution=None))
    predict_files(model, [str(shared_bars / "down")], OutputOptions(as_json=True))
    row = json.loads(capfd.readouterr().out)["predictions"][0]
    assert (row["out_of_distribution"], row["score"]) == (None, None)
