"""On a Ray cluster of two nodes: a node is killed while training; 10,000 pictures are predicted.

The cluster is a test cluster of its own on loopback, with a token of its own.
"""

import gzip
import os
import secrets
import subprocess
import sys
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
TRAINING = "train demo --model compact --epochs 8 --precision fp32 --threads 1 --ranks 2 --seed 3"
COMMAND = (sys.executable, "-c", "from onsight.cli import main; main()")
BROKEN = 7


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two nodes with a CPU each."""
    os.environ |= VARIABLES
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    yield cluster
    cluster.shutdown()
    for name in VARIABLES:
        del os.environ[name]


def start(words, **places):
    given = [word for name, place in places.items() for word in (f"--{name}", str(place))]
    return subprocess.Popen(
        [*COMMAND, *words.split(), *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=600)
    print(err)
    assert process.returncode == 0, err
    return out, err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of two ranks on this machine, without Ray."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(start(TRAINING, out=run))
    return run


def test_training_goes_on_after_a_node_is_killed(cluster, undisturbed, tmp_path):
    node = cluster.add_node(num_cpus=1)
    run = tmp_path / "run"
    training = start(TRAINING, out=run, cluster=cluster.address)
    rows = run / "metrics.jsonl"
    until = time.monotonic() + 300
    while not (rows.exists() and len(rows.read_text().splitlines()) >= 2):
        assert training.poll() is None, training.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    killed = time.monotonic()
    cluster.remove_node(node, allow_graceful=False)
    _, said = finish(training)
    print(f"finished {time.monotonic() - killed:.1f} s after the kill")
    assert "was lost" in said
    assert "going on with 1 of the ranks from the last checkpoint" in said
    assert len(rows.read_text().splitlines()) == 8
    expected = load_file(undisturbed / "model.safetensors")
    found = load_file(run / "model.safetensors")
    apart = {name: np.abs(found[name] - expected[name]).max() for name in expected}
    print(f"largest difference of a weight: {max(apart.values()):.2g}")
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert np.allclose(found[name], weights, rtol=1e-3, atol=1e-4), name


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
def test_every_row_is_the_local_one(cluster, undisturbed, pictures, tmp_path, broken):
    node = cluster.add_node(num_cpus=1)
    for number in range(broken):
        (pictures / f"{1400 * number:05d}-broken.png").write_bytes(b"\x89PNG broken")
    words = f"predict {undisturbed} {pictures} --top 3"
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    finish(start(words, parquet=here))
    out, said = finish(start(words, parquet=there, cluster=cluster.address))
    cluster.remove_node(node)
    local, mapped = read_table(here), read_table(there)
    assert local.num_rows == 10_000 + broken
    assert f"{10_000:,} predicted, {broken} could not be used" in said
    assert mapped.schema == local.schema
    for name in ("path", "predicted", "problem", "unlike"):
        assert mapped[name].equals(local[name]), name
    exact = mapped.equals(local)
    print(f"{local.num_rows} rows, {broken} broken: equal to the last bit: {exact}")
    probabilities = [table["probability"].to_numpy() for table in (local, mapped)]
    assert np.allclose(*probabilities, rtol=1e-5, equal_nan=True)


def test_embedding_is_the_local_one(cluster, undisturbed, pictures, tmp_path):
    few = sorted(map(str, pictures.iterdir()))[:1_000]
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    words = f"embed {undisturbed} {' '.join(few)}"
    finish(start(words, out=here))
    finish(start(words, out=there, cluster=cluster.address))
    local, mapped = read_table(here), read_table(there)
    assert mapped.schema == local.schema
    assert mapped["path"].equals(local["path"])
    features = [np.array(t["features"].drop_null().to_pylist()) for t in (local, mapped)]
    assert np.allclose(*features, rtol=1e-4, atol=1e-5)
