"""On a Ray cluster of two nodes: a node is killed while training; 10,000 pictures are predicted.

The cluster is a test cluster of its own on loopback, with a token of its own.
"""

import gzip
import os
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow.parquet import read_table
from safetensors.numpy import load_file

FASHION = Path("/usr/share/datasets/fashion-mnist")
VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
TRAINING = "train demo --epochs 8 --precision fp32 --threads 1 --ranks 2 --seed 3"
PRECISE = """
from torch import nn
from onsight.models.classic import LeNet


class Precise(nn.Module):
    '''In float64, where rounding that depends on the number of ranks makes no difference.'''

    def __init__(self):
        super().__init__()
        self.net = LeNet((1, 28, 28), 10).double()

    def forward(self, images):
        return self.net(images.double())
"""
COMMAND = (sys.executable, "-c", "from onsight.cli import main; main()")
BROKEN = 7


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Ray cluster of one node with a CPU, to which tests add others."""
    code = tmp_path_factory.mktemp("code")
    (code / "precise.py").write_text(PRECISE)
    former = dict(os.environ)
    path = os.pathsep.join(filter(None, [str(code), os.environ.get("PYTHONPATH")]))
    os.environ |= {**VARIABLES, "PYTHONPATH": path}
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    yield cluster
    cluster.shutdown()
    os.environ.clear()
    os.environ |= former


class Command:
    """A command whose lines on stderr are kept with the seconds at which they came."""

    def __init__(self, words, **places):
        given = [word for name, place in places.items() for word in (f"--{name}", str(place))]
        self.began = time.monotonic()
        self.lines = []
        self.process = subprocess.Popen(
            [*COMMAND, *words.split(), *given], stderr=subprocess.PIPE, text=True
        )
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic() - self.began, line.rstrip()))

    def when(self, text):
        """The first moment at which a line had this text; None if there was none."""
        return next((at for at, line in self.lines if text in line), None)

    def wait_for(self, text, seconds=300):
        while self.when(text) is None:
            assert self.process.poll() is None, self.lines
            assert time.monotonic() - self.began < seconds, self.lines
            time.sleep(0.05)

    def finish(self):
        code = self.process.wait(timeout=600)
        self.thread.join()
        print("\n".join(f"{at:6.1f} s  {line}" for at, line in self.lines))
        assert code == 0


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """A run of two ranks on this machine, without Ray."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    Command(f"{TRAINING} --model precise:Precise", out=run).finish()
    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A run of one epoch, whose network a model file holds."""
    run = tmp_path_factory.mktemp("model") / "run"
    Command("train demo --model compact --epochs 1", out=run).finish()
    return run


def test_training_goes_on_after_a_node_is_killed(cluster, undisturbed, tmp_path):
    node = cluster.add_node(num_cpus=1)
    run = tmp_path / "run"
    words = f"{TRAINING} --model precise:Precise"
    training = Command(words, out=run, cluster=cluster.address)
    training.wait_for("epoch 2/8")
    killed = time.monotonic() - training.began
    cluster.remove_node(node, allow_graceful=False)
    training.finish()
    print(f"noticed {training.when('was lost') - killed:.1f} s after the kill")
    print(f"the next epoch was done {training.when('epoch 4/8') - killed:.1f} s after the kill")
    assert training.when("going on with 1 of the ranks from the last checkpoint")
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 8
    expected = load_file(undisturbed / "model.safetensors")
    found = load_file(run / "model.safetensors")
    apart = {name: np.abs(found[name] - expected[name]).max() for name in expected}
    print(f"largest difference of a weight: {max(apart.values()):.2g}")
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert np.allclose(found[name], weights, rtol=1e-9, atol=1e-9), name


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Fashion-MNIST's 10,000 test pictures as PNG files, and some files that are none."""
    folder = tmp_path_factory.mktemp("pictures")
    content = gzip.decompress((FASHION / "t10k-images-idx3-ubyte.gz").read_bytes())
    pixels = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 28, 28)
    for number, one in enumerate(pixels):
        Image.fromarray(one).save(folder / f"{number:05d}.png")
    return folder


@pytest.mark.parametrize("broken", [0, BROKEN])
def test_every_row_is_the_local_one(cluster, model, pictures, tmp_path, broken):
    node = cluster.add_node(num_cpus=1)
    for number in range(broken):
        (pictures / f"{1400 * number:05d}-broken.png").write_bytes(b"\x89PNG broken")
    words = f"predict {model} {pictures} --top 3"
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    Command(words, parquet=here).finish()
    mapping = Command(words, parquet=there, cluster=cluster.address)
    mapping.finish()
    cluster.remove_node(node)
    local, mapped = read_table(here), read_table(there)
    assert local.num_rows == 10_000 + broken
    assert mapping.when(f"{10_000:,} predicted, {broken} could not be used")
    assert mapped.schema == local.schema
    for name in ("path", "predicted", "problem", "unlike"):
        assert mapped[name].equals(local[name]), name
    exact = mapped.equals(local)
    print(f"{local.num_rows} rows, {broken} broken: equal to the last bit: {exact}")
    probabilities = [table["probability"].to_numpy() for table in (local, mapped)]
    assert np.allclose(*probabilities, rtol=1e-5, equal_nan=True)


def test_embedding_is_the_local_one(cluster, model, pictures, tmp_path):
    few = sorted(map(str, pictures.iterdir()))[:1_000]
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    words = f"embed {model} {' '.join(few)}"
    Command(words, out=here).finish()
    Command(words, out=there, cluster=cluster.address).finish()
    local, mapped = read_table(here), read_table(there)
    assert mapped.schema == local.schema
    assert mapped["path"].equals(local["path"])
    features = [np.array(t["features"].drop_null().to_pylist()) for t in (local, mapped)]
    assert np.allclose(*features, rtol=1e-4, atol=1e-5)
