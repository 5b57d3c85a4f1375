"""Fixtures for all tests: small datasets, trained runs, and substitutes for slow parts."""

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as on a busy machine; before torch loads
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # tests that import onnxruntime themselves

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from planted_blend import plant_blend
from portable import THREADS, WEIGHTS
from torch import get_num_threads

import onsight
from bars import make_bars
from onsight import installation
from onsight.data import split
from onsight.data.duplicates import near
from onsight.models.file import load_model_file, save_model
from onsight.report import page
from onsight.report.console import SilentReporter
from onsight.report.gallery import MistakesHeat
from onsight.training import save_run
from onsight.tune import candidates, folds

TESTS = Path(__file__).parent

torch.set_num_threads(THREADS)  # one: tiny networks lose with two on a busy machine


@pytest.fixture(autouse=True)
def threads_in_force():
    """Fail a test before which, or after which, torch computes with another number of threads."""
    assert get_num_threads() == THREADS
    yield
    assert get_num_threads() == THREADS  # torch's own, whatever the test has patched


def pytest_generate_tests(metafunc):
    """Give the tests marked `needs_learned` learned weights, whatever ONSIGHT_TEST_WEIGHTS says."""
    if WEIGHTS == "random" and metafunc.definition.get_closest_marker("needs_learned"):
        for run in {"trained", "backbone"} & set(metafunc.fixturenames):
            metafunc.parametrize(run, ["trained"], indirect=True)


@pytest.fixture(scope="session", autouse=True)
def common_cache(tmp_path_factory):
    """Use this cache for what tests share, and never the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONSIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def versions_read_once():
    """Read the version of a package from its files once: each run asks for more than a dozen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installation, "version", cache(installation.version))
        yield


@pytest.fixture(scope="session", autouse=True)
def near_duplicates_found_once():
    """Compare the same images once, whatever the cache: it takes longer than a small training."""
    find, found = near._find, {}

    def find_once(pack, distinct, views, progress):
        key = pack.digests.tobytes(), repr(pack.format)
        if key not in found:
            found[key] = find(pack, distinct, views, progress)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "_find", find_once)
        yield


OURS = ("onsight.models.classic", "onsight.models.compact")


@pytest.fixture(scope="session", autouse=True)
def operations_counted_once():
    """Count the operations of a network of ours once: counting takes longer than computing."""
    count_anew, counts = folds.forward_flops, {}

    def forward_flops(net, shape, device):
        if type(net).__module__ not in OURS or device.type != "cpu":
            return count_anew(net, shape, device)
        parameters = sum(parameter.numel() for parameter in net.parameters())
        key = type(net), parameters, shape
        if key not in counts:
            counts[key] = count_anew(net, shape, device)
        return counts[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds, "forward_flops", forward_flops)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_folds_by_default():
    """Without this, every run on a small dataset would cross-validate and train six networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "ENOUGH_TEST_IMAGES", 0)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_offline_models():
    """Hide pretrained weights, so that a run without a named model trains one network only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "offline_models", list)
        yield


RENDER = Figure.savefig


def save_sketch(figure, file, **options):
    """Render a figure, but leave those of reports blank: each takes a tenth of a second."""
    if options.get("format") == "svg":
        file.write('<svg viewBox="0 0 1 1"></svg>')
    else:
        RENDER(figure, file, **options)


@pytest.fixture(scope="session", autouse=True)
def blank_figures():
    """Leave figures in reports blank, unless a test uses `rendered_figures`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save_sketch)
        yield


@pytest.fixture
def rendered_figures(monkeypatch):
    """Render the figures of reports."""
    monkeypatch.setattr(Figure, "savefig", RENDER)


WRITE_REPORT, FIND_HEAT = page.write_report, save_run.find_heat
REPORTS_ARE_BLANK = {
    "audit",
    "cluster",
    "data",
    "estimator",
    "inference",
    "models",
    "ranks",
    "step",
    "sweeper",
    "training",
    "tune",
}


def write_blank_report(run):
    """Write an empty report: the real one takes most of a small run's time."""
    (run / "report.html").touch()
    return run / "report.html"


def find_no_heat(dataset, classifier, per_image, deadline, image_seconds):
    """Compute no heat maps of mistakes, which only a report shows, unless time is measured."""
    if deadline.is_set:
        return FIND_HEAT(dataset, classifier, per_image, deadline, image_seconds)
    return MistakesHeat(np.zeros((0, *dataset.images.shape[:2]), np.float32))


@pytest.fixture
def blank_report(monkeypatch):
    """Write an empty report after each run."""
    monkeypatch.setattr(page, "write_report", write_blank_report)
    monkeypatch.setattr(save_run, "find_heat", find_no_heat)


@pytest.fixture(autouse=True)
def blank_reports_in_some_folders(request):
    """Write empty reports in the folders with many runs, unless a test uses `real_report`.

    Fixtures with a wider scope, such as `trained`, write the real report.
    """
    if request.path.relative_to(TESTS).parts[0] in REPORTS_ARE_BLANK:
        request.getfixturevalue("blank_report")


@pytest.fixture
def real_report(blank_reports_in_some_folders, monkeypatch):
    """Write the report after each run, in every folder."""
    monkeypatch.setattr(page, "write_report", WRITE_REPORT)
    monkeypatch.setattr(save_run, "find_heat", FIND_HEAT)


@pytest.fixture(scope="session")
def cache_folders(tmp_path_factory):
    """Yield paths of unused caches; mktemp would list all folders for each."""
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_cache(cache_folders, monkeypatch):
    """Give each test its own cache."""
    monkeypatch.setenv("ONSIGHT_CACHE", str(next(cache_folders)))


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    """A test's own copy of the images."""
    return make_bars(tmp_path / "bars")


@pytest.fixture(scope="session")
def shared_bars(build_once) -> Path:
    """The same images, shared by tests; do not modify them."""
    return build_once("bars", lambda folder: make_bars(folder / "bars")) / "bars"


@pytest.fixture(scope="session")
def train_once(build_once) -> Callable[..., onsight.Run]:
    """Train once for all test processes: `train_once(name, data, **settings) -> Run`.

    With `report=False`, its report is empty.
    """

    def train_once(name: str, data: Path, report: bool = True, **settings: object) -> onsight.Run:
        def train(folder: Path) -> None:
            with pytest.MonkeyPatch.context() as patch:
                if not report:
                    patch.setattr(page, "write_report", write_blank_report)
                    patch.setattr(save_run, "find_heat", find_no_heat)
                onsight.train(data, out=folder / "run", reporter=SilentReporter(), **settings)

        path = build_once(name, train) / "run"
        return onsight.Run(path, json.loads((path / "results.json").read_text()))

    return train_once


def train_small(train_once, request, name, data, **settings):
    """Train once with or without learning, as ONSIGHT_TEST_WEIGHTS or the test's marker asks."""
    if getattr(request, "param", WEIGHTS) == "random":
        name, settings = f"{name}-random", settings | {"learning_rate": 1e-30}
    return train_once(name, data, batch_size=16, threads=THREADS, **settings)


@pytest.fixture(scope="session")
def trained(request, shared_bars, train_once) -> onsight.Run:
    """A run of three epochs on the bars; do not modify its folder."""
    return train_small(train_once, request, "trained", shared_bars, epochs=3)


@pytest.fixture(scope="session")
def blended(trained, build_once) -> Path:
    """A copy of the trained run whose model is a blend of three networks; do not modify it."""

    def blend(folder: Path) -> None:
        run = shutil.copytree(trained.path, folder / "run")
        save_model(run / "model.safetensors", plant_blend(load_model_file(trained.path)))

    return build_once(f"blended-{trained.path.parent.name}", blend) / "run"


@pytest.fixture(scope="session")
def backbone(request, shared_bars, train_once) -> onsight.Run:
    """A run of a network from timm, trained long enough to have learned something."""
    settings = {"model": "test_resnet", "image_size": 16, "precision": "fp32", "epochs": 2}
    return train_small(train_once, request, "backbone", shared_bars, **settings)
