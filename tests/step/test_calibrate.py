"""The temperature at the end of a run: fitted on validation images, shared by everything."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from rank_in_thread import RankInThread
from torch import nn

import onsight
from onsight.data.loader import Images
from onsight.data.normalization import Normalization
from onsight.evaluation.temperature import choose_temperature
from onsight.models.classifier import Classifier
from onsight.ranks.world import World
from onsight.report.console import SilentReporter
from onsight.report.page import write_report
from onsight.step.calibrate import calibrate_temperature, compute_held_out_logits

CPU = torch.device("cpu")


def noisy_task(count, overconfident=4.0):
    """One-pixel images whose label follows from the brightness only with some probability."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1), dtype=torch.uint8, generator=generator)
    logit = (pixels[:, 0] / 255 - 0.5) * 6
    labels = (torch.rand(count, generator=generator) < logit.sigmoid()).long()
    net = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False))
    net[1].weight.data = torch.tensor([[-3.0], [3.0]]) * overconfident
    classifier = Classifier(net, Normalization((0.5,), (1.0,)), "fp32", CPU)
    return classifier, Images(pixels, torch.arange(count), labels, (1, 1, 1))


def fit_temperature_on_images(classifier, images, ids, world):
    held_out = compute_held_out_logits(classifier, images, ids, world)
    assert torch.equal(held_out.labels, images.labels[ids])
    return calibrate_temperature(classifier, held_out, world)


def test_the_planted_overconfidence_is_divided_out():
    classifier, images = noisy_task(4000)
    before = classifier(images.pixels.view(-1, 1, 1, 1)[:9])
    choice = fit_temperature_on_images(classifier, images, torch.arange(4000), World())
    assert choice.value == classifier.temperature == pytest.approx(4.0, rel=0.15)
    after = classifier(images.pixels.view(-1, 1, 1, 1)[:9])
    assert torch.equal(after, before / choice.value)


@pytest.mark.parametrize("count", [0, 100, 700])
def test_ranks_share_the_work_and_get_one_temperature(count):
    alone, images = noisy_task(1000)
    ids = torch.arange(0, count)
    choice = fit_temperature_on_images(alone, images, ids, World())
    classifiers = [noisy_task(1000)[0] for _ in range(2)]

    def fit(rank):
        return fit_temperature_on_images(classifiers[rank], images, ids, RankInThread(rank))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fit, range(2))) == [choice, choice]
    assert [one.temperature for one in classifiers] == [alone.temperature] * 2


@pytest.mark.parametrize(("side", "batches"), [(64, [20]), (None, [16, 4])])
def test_batches_are_those_of_an_evaluation_at_the_size_of_the_input(side, batches):
    sizes = []

    class Counting(nn.Flatten):
        def forward(self, batch):
            sizes.append(len(batch))
            return super().forward(batch)[:, :2]

    normalization = Normalization((0.5,), (1.0,), side and (side, side))
    classifier = Classifier(Counting(), normalization, "fp32", CPU)
    pixels = torch.zeros(20, 96 * 96, dtype=torch.uint8)
    ids = torch.arange(20)
    compute_held_out_logits(classifier, Images(pixels, ids, ids, (96, 96, 1)), ids, World())
    assert sizes == batches


def test_only_the_given_images_count_and_none_leave_it_at_1():
    classifier, images = noisy_task(1000)
    logits = classifier(images.pixels.view(-1, 1, 1, 1)[:300])
    choice = fit_temperature_on_images(classifier, images, torch.arange(300), World())
    assert choice == choose_temperature(logits, images.labels[:300])
    classifier.temperature = 1.0
    assert fit_temperature_on_images(classifier, images, torch.arange(0), World()).value == 1


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A run with smoothed labels, so that the network is not sure enough, and its data."""
    folder = tmp_path_factory.mktemp("calibrated")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 1200).astype(np.uint8)
    images = rng.integers(0, 200, (1200, 8, 8), dtype=np.uint8)
    seen = np.where(rng.random(1200) < 0.9, labels, 1 - labels)
    images[seen == 1, :4] += 40
    data = folder / "data"
    data.mkdir()
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (data / f"train-{name}-ubyte").write_bytes(head + array.tobytes())
    settings = {
        "epochs": 4,
        "label_smoothing": 0.5,
        "validation_fraction": 0.25,
        "test_fraction": 0.25,
        "flip": False,
    }
    run = onsight.train(
        data,
        out=folder / "run",
        model="compact",
        threads=1,
        translate=0.0,
        plan="default",
        cache_folder="none",
        reporter=SilentReporter(),
        **settings,
    )
    return run, data


def test_a_run_keeps_its_temperature_and_says_what_it_changed(calibrated, rendered_figures):
    run, data = calibrated
    results = json.loads((run.path / "results.json").read_text())
    assert results["temperature"] < 0.8
    assert "validation images" in results["temperature_reason"]
    assert results["expected_calibration_error"] < results["expected_calibration_error_before"]
    again = onsight.evaluate(run.path, data, cache_folder="none")
    for same in ("accuracy", "loss", "calibration", "calibration_before", "temperature"):
        assert again[same] == results[same]
    page = write_report(run.path).read_text()
    assert f"T = {results['temperature']:g}, fitted on" in page
    assert "before temperature scaling" in page


def test_a_temperature_changes_no_prediction(calibrated):
    run, _ = calibrated
    predictor = onsight.load(run.path)
    assert predictor.classifier.temperature == run.results["temperature"]
    images = np.random.default_rng(1).integers(0, 256, (500, 8, 8, 1), dtype=np.uint8)
    cooled, labels = predictor.predict_proba(images), predictor.predict(images)
    predictor.classifier.temperature = 1.0
    assert predictor.predict(images) == labels
    assert not np.allclose(predictor.predict_proba(images), cooled, atol=0.01)
