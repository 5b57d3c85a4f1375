"""Small data sets that tests share."""

import json
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as on a busy machine; before torch loads
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # tests that import onnxruntime themselves

import pytest
import torch
from matplotlib.figure import Figure
from planted_blend import plant_blend

import onsight
from bars import make_bars
from onsight.data import split
from onsight.models.file import load_model_file, save_model
from onsight.report import page
from onsight.report.console import SilentReporter
from onsight.tune import candidates

TESTS = Path(__file__).parent

torch.set_num_threads(1)  # tiny nets gain nothing from two, and a busy machine takes its toll


@pytest.fixture(scope="session", autouse=True)
def common_cache(tmp_path_factory):
    """What tests share is cached here; nothing touches the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONSIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def folds_only_if_asked():
    """The data sets of tests are small: by itself, every run would train six networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "ENOUGH_TEST_IMAGES", 0)
        yield


@pytest.fixture(scope="session", autouse=True)
def model_from_scratch_unless_asked():
    """Without weights, a run that names no model trains one network, and not several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "offline_models", list)
        yield


RENDER = Figure.savefig


def save_sketch(figure, file, **options):
    """Render a figure, but leave a report's blank: each takes a tenth of a second."""
    if options.get("format") == "svg":
        file.write('<svg viewBox="0 0 1 1"></svg>')
    else:
        RENDER(figure, file, **options)


@pytest.fixture(scope="session", autouse=True)
def sketched_figures():
    """Reports have blank figures, unless a test asks for `rendered_figures`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save_sketch)
        yield


@pytest.fixture
def rendered_figures(monkeypatch):
    """The figures of reports are rendered."""
    monkeypatch.setattr(Figure, "savefig", RENDER)


@pytest.fixture(autouse=True)
def blank_report(request, monkeypatch):
    """Leave the report of a run blank where tests train much: most of a small run's time.

    Fixtures of a wider scope, such as `trained`, write the real one.
    """
    if request.path.relative_to(TESTS).parts[0] in {"ranks", "step", "training", "tune"}:

        def write_report(run):
            (run / "report.html").touch()
            return run / "report.html"

        monkeypatch.setattr(page, "write_report", write_report)


@pytest.fixture(scope="session")
def cache_folders(tmp_path_factory):
    """Paths of caches that nobody has used; mktemp would look through all folders for each."""
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_cache(cache_folders, monkeypatch):
    """Each test has a cache of its own."""
    monkeypatch.setenv("ONSIGHT_CACHE", str(next(cache_folders)))


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    """Images of a test's own."""
    return make_bars(tmp_path / "bars")


@pytest.fixture(scope="session")
def shared_bars(build_once) -> Path:
    """The same images for what tests share; nobody changes them."""
    return build_once("bars", lambda folder: make_bars(folder / "bars")) / "bars"


@pytest.fixture(scope="session")
def train_once(build_once) -> Callable[..., onsight.Run]:
    """Train once for all test processes: `train_once(name, data, **settings) -> Run`."""

    def train_once(name: str, data: Path, **settings: object) -> onsight.Run:
        def train(folder: Path) -> None:
            onsight.train(data, out=folder / "run", reporter=SilentReporter(), **settings)

        path = build_once(name, train) / "run"
        return onsight.Run(path, json.loads((path / "results.json").read_text()))

    return train_once


@pytest.fixture(scope="session")
def trained(shared_bars, train_once) -> onsight.Run:
    """A run of three epochs on the bars, with what it wrote; nobody changes it."""
    return train_once("trained", shared_bars, epochs=3, batch_size=16, threads=1)


@pytest.fixture(scope="session")
def blended(trained, build_once) -> Path:
    """The folder of the trained run with a blend of three networks in it; nobody changes it."""

    def blend(folder: Path) -> None:
        run = shutil.copytree(trained.path, folder / "run")
        save_model(run / "model.safetensors", plant_blend(load_model_file(trained.path)))

    return build_once("blended", blend) / "run"


@pytest.fixture(scope="session")
def backbone(shared_bars, train_once) -> onsight.Run:
    """A run of a network from timm that has learned something."""
    settings = {"model": "test_resnet", "image_size": 16, "threads": 1, "precision": "fp32"}
    return train_once("backbone", shared_bars, epochs=2, batch_size=16, **settings)
