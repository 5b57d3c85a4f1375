"""A sweep that is killed and resumed, and the server, on a real Ray cluster on this machine.

Needs onsight[cluster,serve]. The cluster is a private test cluster with its own token.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import onsight
from own_cluster import add_node, own_cluster

RUNS = 6
TRIED = ("--try", "learning_rate=0.001,0.003,0.01", "--try", "flip=true,false")
FIELDS = {"model": "lenet", "epochs": 6, "batch_size": 16, "threads": 1, "precision": "fp32"}
FIELDS |= {"plan": "default"}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 60 noisy bars each."""
    folder, rng = tmp_path_factory.mktemp("bars"), np.random.default_rng(1)
    for kind in ("across", "down"):
        (folder / kind).mkdir()
        for number in range(60):
            pixels = rng.integers(0, 80, (12, 12), np.uint8)
            pixels[rng.integers(2, 10)] = 255
            image = Image.fromarray(pixels if kind == "across" else pixels.T)
            image.save(folder / kind / f"{number:03d}.png")
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Ray cluster of two nodes with one CPU each, so that two runs train at a time."""
    with own_cluster(1, {"ONSIGHT_CACHE": str(tmp_path_factory.mktemp("cache"))}) as cluster:
        add_node(cluster)
        yield cluster


def command(images: Path, out: Path, *more: str) -> list[str]:
    """Return the sweep's command."""
    fields = [f"--{name.replace('_', '-')}={value}" for name, value in FIELDS.items()]
    words = ["sweep", str(images), *TRIED, *fields, f"--out={out}", "--json", *more]
    return [sys.executable, "-m", "onsight", *words]


@pytest.fixture(scope="module")
def swept(
    images: Path, cluster: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A sweep of six runs whose command is killed after the first run, then resumed."""
    out = tmp_path_factory.mktemp("sweeps") / "s"
    words = command(images, out, "--cluster=auto")
    started = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
    while not (any(out.glob("*/report.html")) and len(list(out.glob("*/checkpoints"))) > 1):
        assert started.poll() is None
        time.sleep(0.1)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    finished = {path: path.stat().st_mtime_ns for path in out.glob("*/report.html")}
    assert 1 <= len(finished) < RUNS
    done = subprocess.run([*words, "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    return out, json.loads(done.stdout)


def test_a_killed_sweep_on_ray_equals_an_undisturbed_local_one(
    images: Path, swept: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out, facts = swept
    assert len(facts["runs"]) == RUNS
    assert facts["failed"] == []
    here = tmp_path / "s"
    subprocess.run(command(images, here), check=True, stdout=subprocess.DEVNULL)
    names = [run["name"] for run in facts["runs"]]
    for name in names:
        alone = (here / name / "predictions.csv").read_bytes()
        assert (out / name / "predictions.csv").read_bytes() == alone, name
    print(f"{len(names)} of {len(names)} runs with equal predictions")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own code
def test_the_server_on_ray_serve_gives_the_models_predictions(
    images: Path, swept: tuple[Path, dict[str, Any]]
) -> None:
    import ray
    from ray import serve

    from onsight.serve.on_ray import DeploymentOptions, app

    out, facts = swept
    model = out / facts["winner"]
    ray.init(address="auto", log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": 18765})
        serve.run(app(DeploymentOptions.model_validate({"model": str(model), "device": "cpu"})))
        image = images / "across" / "000.png"
        status, result = _ask("/predict", image.read_bytes(), **{"Content-Type": "image/png"})
        (expected,) = onsight.load(model, device="cpu").predict_proba([image])
        (row,) = result["predictions"]
        assert status == 200
        assert row["probability"] == pytest.approx(float(expected.max()), abs=1e-6)
        assert _ask("/predict", b"junk", **{"Content-Type": "image/png"})[0] == 422
        assert _ask("/ready")[0] == 200
        assert _ask("/ready", Host="evil.example")[0] == 403
    finally:
        serve.shutdown()
        ray.shutdown()


def _ask(path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:18765{path}", body, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, None
