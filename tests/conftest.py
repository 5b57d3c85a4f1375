"""Small data sets that tests share."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as on a busy machine; before torch loads

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import onsight
from onsight.data import folds
from onsight.report.console import SilentReporter
from onsight.training.auto import candidates
from onsight_explain.cores import usable_cores

torch.set_num_threads(1)  # tiny nets gain nothing from two, and a busy machine takes its toll


@pytest.hookimpl(optionalhook=True)  # without xdist, there is no such hook
def pytest_xdist_auto_num_workers():
    """One more than there are cores: many tests wait for the processes they start."""
    return usable_cores() + 1


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
        patch.setattr(folds, "ENOUGH_TEST_PICTURES", 0)
        yield


@pytest.fixture(scope="session", autouse=True)
def model_from_scratch_unless_asked():
    """Without weights there is nothing to try, and no run spends its time on trials."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "offline_models", list)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks():
    """Files need not survive a power cut here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
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


@pytest.fixture
def hostile_folder(tmp_path, monkeypatch):
    """The working directory, where files have the names of modules; none may be imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ("typing", "json", "struct", "numpy", "torch"):
        text = f"open({str(folder / 'imported')!r}, 'a').write('{name} ')\n"
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    yield folder
    assert not (folder / "imported").exists(), (folder / "imported").read_text()


@pytest.fixture(scope="session")
def cache_folders(tmp_path_factory):
    """Paths of caches that nobody has used; mktemp would look through all folders for each."""
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_cache(cache_folders, monkeypatch):
    """Each test has a cache of its own."""
    monkeypatch.setenv("ONSIGHT_CACHE", str(next(cache_folders)))


@pytest.fixture(scope="session")
def build_once(tmp_path_factory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Build an expensive folder once for all test processes: `build_once(name, build) -> Path`.

    `build` fills the empty folder it is given; nobody changes it afterwards. Tests in other
    processes wait for it. If it raises, the next test that needs the folder tries again.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # every worker has a folder of its own inside the run's
    shared = base / "shared"
    shared.mkdir(exist_ok=True)

    def build_once(name: str, build: Callable[[Path], object]) -> Path:
        folder = shared / name
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = shared / f"{name}.done"
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                build(folder)
                done.touch()
        return folder

    return build_once


def shape_picture(kind: str, rng: np.random.Generator, side: int = 12) -> np.ndarray:
    """A noisy picture of a bar: 'across' or 'down', learnable in a moment."""
    pixels = rng.integers(0, 80, (side, side), np.uint8)
    place = int(rng.integers(2, side - 2))
    if kind == "across":
        pixels[place] = 255
    else:
        pixels[:, place] = 255
    return pixels


def make_bars(folder: Path) -> Path:
    """Two classes of 60 grey PNGs each, without a split; always the same pictures."""
    rng = np.random.default_rng(1)
    for kind in ("across", "down"):
        (folder / kind).mkdir(parents=True)
        for number in range(60):
            Image.fromarray(shape_picture(kind, rng)).save(folder / kind / f"{number:03d}.png")
    return folder


@pytest.fixture
def bars(tmp_path: Path) -> Path:
    """Pictures of a test's own."""
    return make_bars(tmp_path / "bars")


@pytest.fixture(scope="session")
def shared_bars(build_once) -> Path:
    """The same pictures for what tests share; nobody changes them."""
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
