"""A model in use keeps its answers, to the bit, when its file is overwritten or cut in place."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from serve_stub import image, running

import onsight
from onsight.models.catalog import make_model
from onsight.models.file import ModelFile, save_model
from onsight.models.head import find_head
from onsight.models.out_of_distribution import OutOfDistributionDetector
from onsight.models.preprocessing import Preprocessing

PREPROCESSING = Preprocessing(
    height=28,
    width=28,
    channels=1,
    fit="stretch",
    background=(255, 255, 255),
    pixel_limit=10**6,
    mean=(0.5,),
    std=(0.2,),
    precision="fp32",
)
IMAGES = [image(value, side=28) for value in (10, 120, 250)]


def plant_model(path, seed, rows=2000):
    """A model file with a network of random weights, and rows of features that it has seen."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = make_model("lenet", (1, 28, 28), 3)
        bank = F.normalize(torch.randn(rows, find_head(net).in_features)).half()
    file = ModelFile(
        model="lenet",
        classes=("a", "b", "c"),
        preprocessing=PREPROCESSING,
        results={},
        provenance={},
        weights=dict(net.state_dict()),
        seen=np.zeros(5, np.int64),
        out_of_distribution=OutOfDistributionDetector(bank, 0.7, 0.01, 100),
    )
    save_model(path, file)
    return path


@pytest.fixture(params=["of the same size", "smaller", "a part of one"])
def other(request, tmp_path):
    """The content of another model file."""
    rows = 50 if request.param == "smaller" else 2000
    content = plant_model(tmp_path / "other", seed=1, rows=rows).read_bytes()
    return content[:5000] if request.param == "a part of one" else content


def answers(predictor):
    """Everything that a predictor says of the images, bit for bit."""
    return [
        (
            prediction.predicted,
            prediction.probability,
            prediction.probabilities.tobytes(),
            prediction.out_of_distribution,
            prediction.score,
        )
        for prediction in predictor.predictions(IMAGES)
    ]


def test_a_loaded_model_keeps_its_answers(tmp_path, other):
    path = plant_model(tmp_path / "model.safetensors", seed=0)
    predictor = onsight.load(path)
    before, seen = answers(predictor), predictor.file.seen.tolist()
    path.write_bytes(other)
    assert answers(predictor) == before
    assert predictor.file.seen.tolist() == seen


def test_a_served_model_keeps_its_answers_when_a_copy_over_it_stops_halfway(tmp_path):
    path = plant_model(tmp_path / "served.safetensors", seed=0)
    other = plant_model(tmp_path / "other", seed=1, rows=50).read_bytes()
    with running(path, onsight.load) as server:
        before = server.predict(*IMAGES)
        assert before[0] == 200
        path.write_bytes(other[:-100])
        assert server.predict(*IMAGES) == before
        for _ in range(2):
            server.registry.reload_changed()
        assert "new file cannot be used" in server.ask("GET", "/ready")[2]["models"]["served"]
        assert server.predict(*IMAGES) == before
