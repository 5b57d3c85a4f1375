"""A Ray cluster of two nodes: killing a node during training; predicting 10,000 images."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from PIL import Image, ImageOps
from pyarrow.parquet import read_table
from safetensors.numpy import load_file

import onsight
from own_cluster import add_node, own_cluster

DEMO = Path(onsight.__file__).parent / "demo" / "fashion-mnist-sample.zip"
PER_CLASS = 400
EPOCHS = 40
IMAGES, BROKEN = 10_000, 7
TRAINING = (
    "--model precise:Precise --batch-size 16 --precision fp32 --threads 1 --ranks 2 --seed 3 "
    "--plan default --folds 1 --verbose"  # which prints each epoch
)
PRECISE = """
from torch import nn
from onsight.models.classic import LeNet


class Precise(nn.Module):
    '''LeNet in float64, so that rounding hardly depends on the number of ranks.'''

    def __init__(self):
        super().__init__()
        self.net = LeNet((1, 28, 28), 3).double()

    def forward(self, images):
        return self.net(images.double())
"""
COMMAND = (sys.executable, "-c", "from onsight.cli import main; main()")


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables with which Python finds the network."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "precise.py").write_text(PRECISE)
    places = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(places)}


@pytest.fixture(scope="module")
def cluster(code: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Ray cluster of one node with one CPU, to which tests add others."""
    cache = str(tmp_path_factory.mktemp("cache"))
    with own_cluster(1, {"ONSIGHT_CACHE": cache, **code}) as cluster:
        yield cluster


class Command:
    """A command; records its stderr, line by line, with the seconds since its start."""

    def __init__(self, words: str, *more: object, **flags: object) -> None:
        options = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        self.began = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            [*COMMAND, *words.split(), *map(str, more), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        readers = (self._read_stderr, self._read_stdout)
        self.threads = [threading.Thread(target=reader) for reader in readers]
        for thread in self.threads:
            thread.start()

    def _read_stderr(self) -> None:
        """Record and print each line."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append((time.monotonic() - self.began, line.rstrip()))
            print(f"{self.lines[-1][0]:6.1f} s  {self.lines[-1][1]}", flush=True)

    def _read_stdout(self) -> None:
        assert self.process.stdout
        self.result = self.process.stdout.read()

    def when(self, text: str) -> float:
        """Return the seconds until a line first contained this text."""
        return next(at for at, line in self.lines if text in line)

    def wait_for(self, text: str) -> None:
        """Wait until a line contains this text."""
        while not any(text in line for _, line in self.lines):
            assert self.process.poll() is None, self.lines
            time.sleep(0.05)

    def finish(self, expected: int = 0) -> None:
        """Wait for the end, and check the exit code."""
        for thread in self.threads:
            thread.join()
        with self.process:
            assert self.process.wait() == expected
        assert "raylet" not in self.result


@pytest.fixture(scope="module")
def garments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders with three classes of the demo."""
    folder = tmp_path_factory.mktemp("garments")
    with ZipFile(DEMO) as demo:
        for kind in ("trouser", "bag", "sneaker"):
            names = [name for name in demo.namelist() if name.startswith(f"train/{kind}/")]
            demo.extractall(folder, names[:PER_CLASS])
    return folder / "train"


def test_training_continues_after_a_node_is_killed(
    cluster: Any, garments: Path, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    words = f"train {garments} {TRAINING} --epochs {EPOCHS}"
    Command(words, out=here).finish()
    node = add_node(cluster)
    training = Command(words, out=there, cluster=cluster.address)
    training.wait_for(f"epoch 3/{EPOCHS}")
    killed = time.monotonic() - training.began
    cluster.remove_node(node, allow_graceful=False)
    training.finish()
    lost, again = (
        training.when(") was lost: "),  # either rank may be on the node
        training.when("continuing with 1 rank from"),
    )
    print(f"named {lost - killed:.1f} s after the kill, resumed {again - killed:.1f} s after it")
    assert training.when("continuing with 1 rank from the last checkpoint")
    assert len((there / "metrics.jsonl").read_text().splitlines()) == EPOCHS
    expected, found = (load_file(run / "model.safetensors") for run in (here, there))
    assert found.keys() == expected.keys()
    differences = {name: np.abs(found[name] - expected[name]).max() for name in expected}
    print(f"largest difference of a weight: {max(differences.values()):.2g}")
    for name, weights in expected.items():
        assert np.allclose(found[name], weights, rtol=1e-9, atol=1e-9), name
    rows = [(run / "predictions.csv").read_text() for run in (here, there)]
    assert rows[0] == rows[1]


def test_a_node_that_returns_is_used_and_the_run_can_be_stopped_and_resumed(
    cluster: Any, garments: Path, tmp_path: Path
) -> None:
    node = add_node(cluster)
    run = tmp_path / "run"
    words = f"train {garments} {TRAINING} --epochs 2000"
    training = Command(words, out=run, cluster=cluster.address)
    training.wait_for("epoch 2/2000")
    cluster.remove_node(node, allow_graceful=False)
    training.wait_for("continuing with 1 rank from the last checkpoint")
    node = add_node(cluster)
    added = time.monotonic() - training.began
    training.wait_for("continuing with 2 ranks from the last checkpoint")
    began = training.when("continuing with 2 ranks")
    print(f"two ranks again {began - added:.1f} s after the node was added")
    while not any(at > began and "/2000: loss" in line for at, line in training.lines):
        time.sleep(0.1)
    training.process.send_signal(signal.SIGINT)
    training.finish(expected=130)
    done = len((run / "metrics.jsonl").read_text().splitlines())
    again = Command(
        f"train {garments} --model precise:Precise --verbose --resume",
        out=run,
        cluster=cluster.address,
    )
    again.wait_for(f"epoch {done + 1}/2000")
    again.process.send_signal(signal.SIGTERM)
    again.finish(expected=143)
    assert again.when("resumed ")
    cluster.remove_node(node)


@pytest.fixture(scope="module")
def model(garments: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model file contains its network."""
    run = tmp_path_factory.mktemp("model") / "run"
    Command(f"train {garments} --model compact --epochs 1 --folds 1", out=run).finish()
    return run


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10,000 PNG files: those of the demo, and mirrored copies of some."""
    folder = tmp_path_factory.mktemp("images")
    with ZipFile(DEMO) as demo:
        names = [name for name in demo.namelist() if name.endswith(".png")]
        for number in range(IMAGES):
            with demo.open(names[number % len(names)]) as file, Image.open(file) as image:
                made = ImageOps.mirror(image) if number >= len(names) else image
                made.save(folder / f"{number:05d}.png")
    return folder


@pytest.mark.parametrize("broken", [0, BROKEN])
def test_predictions_equal_local_ones(
    cluster: Any, model: Path, images: Path, tmp_path: Path, broken: int
) -> None:
    node = add_node(cluster)
    for number in range(broken):
        (images / f"{1400 * number:05d}-broken.png").write_bytes(b"\x89PNG broken")
    words = f"predict {model} {images} --top 3"
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    Command(words, parquet=here).finish()
    mapping = Command(words, parquet=there, cluster=cluster.address)
    mapping.finish()
    cluster.remove_node(node)
    local, mapped = read_table(here), read_table(there)
    assert local.num_rows == IMAGES + broken
    assert mapping.when(f"{IMAGES:,} predicted, {broken} could not be used")
    assert mapped.schema == local.schema
    for name in ("path", "predicted", "problem", "out_of_distribution"):
        assert mapped[name].equals(local[name]), name
    expected, found = (table["probability"].to_numpy() for table in (local, mapped))
    print(f"{local.num_rows} rows, {broken} broken: bit-identical: {mapped.equals(local)}")
    print(f"largest difference: {np.nanmax(np.abs(expected - found)):.2g}")
    assert np.allclose(expected, found, rtol=1e-5, equal_nan=True)


def test_embeddings_equal_local_ones(
    cluster: Any, model: Path, images: Path, tmp_path: Path
) -> None:
    few = sorted(images.iterdir())[:1_000]
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    words = f"embed {model}"
    Command(words, *few, out=here).finish()
    Command(words, *few, out=there, cluster=cluster.address).finish()
    local, mapped = read_table(here), read_table(there)
    assert mapped.schema == local.schema
    assert mapped["path"].equals(local["path"])
    expected, found = (np.array(t["features"].drop_null().to_pylist()) for t in (local, mapped))
    assert np.allclose(expected, found, rtol=1e-4, atol=1e-5)
