"""Training on the twin gives the CPU's bits, whatever is switched on, on both of its devices."""

import json

import pytest
import torch
from safetensors.torch import load_file

import onsight

COMMON = {"epochs": 2, "batch_size": 16, "plan": "default", "folds": "1", "seed": 3}
CONFIGS = {
    "plain": {"model": "lenet", "flip": False, "translate": 0.0},
    "flips and shifts": {"model": "compact", "translate": 0.1},
    "crops and rotation": {"model": "lenet", "crop_area": 0.5, "rotate_degrees": 10.0},
    "jitter": {"model": "lenet", "jitter": 0.4},
    "cutout": {"model": "lenet", "cutout": 0.3},
    "mixup": {"model": "lenet", "mixup": 0.4},
    "cutmix": {"model": "lenet", "cutmix": 1.0},
    "mixup and cutmix": {"model": "lenet", "mixup": 0.4, "cutmix": 1.0, "label_smoothing": 0.1},
    "moving average": {"model": "compact", "ema": 0.9, "recalibrate_norm": True},
    "clipping": {"model": "lenet", "clip_norm": 0.5, "optimizer": "nesterov"},
    "parts": {"model": "lenet", "accumulate": 3},
    "mse": {"model": "lenet", "loss": "mse"},
    "weights of classes": {"model": "lenet", "class_weights": "balanced", "tta": "flip-shift"},
    "in memory": {"model": "lenet", "residency": "memory"},
    "in the file": {"model": "lenet", "residency": "map"},
    "streamed": {"model": "lenet", "residency": "stream", "crop_area": 0.6},
    "folds": {"model": "lenet", "folds": "2", "epochs": 1},
    "sprint": {"model": "sprint"},
}


def train(pictures, folder, device, **settings):
    config = COMMON | {"cache_folder": str(folder.parent / "cache")} | settings
    return onsight.train(pictures, out=str(folder), device=device, **config)


def outcome(folder):
    weights = load_file(folder / "model.safetensors")
    results = json.loads((folder / "results.json").read_text())
    figures = {name: results[name] for name in ("accuracy", "loss", "classes") if name in results}
    return weights, figures, (folder / "predictions.csv").read_text()


def assert_same(one, other):
    assert one[0].keys() == other[0].keys()
    for name, tensor in one[0].items():
        assert tensor.equal(other[0][name]), name
    assert one[1:] == other[1:]


def assert_alike(one, other):
    """The same weights but for the rounding of one sum."""
    assert one[0].keys() == other[0].keys()
    for name, tensor in one[0].items():
        torch.testing.assert_close(tensor, other[0][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("number", "name"), list(enumerate(CONFIGS)))
def test_the_bits_are_those_of_the_cpu(tmp_path, pictures, machine_off, number, name):
    train(pictures, tmp_path / "cpu", "cpu", **CONFIGS[name])
    with machine_off() as machine:
        # On the second device, the current one is another; a few runs are on the first.
        train(pictures, tmp_path / "twin", f"twin:{int(number % 4 > 0)}", **CONFIGS[name])
        machine.check()
    # On a GPU, the norm of all gradients is summed in another order; with AVX-512 it is seen.
    check = assert_alike if "clip_norm" in CONFIGS[name] else assert_same
    check(outcome(tmp_path / "cpu"), outcome(tmp_path / "twin"))
