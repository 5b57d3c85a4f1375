"""The preprocessing in a model file: it comes back equal, and damage is named."""

import json

import pytest
import torch

from onsight.data.fit import ImageFormat
from onsight.data.normalization import Normalization
from onsight.errors import ModelError
from onsight.models.catalog import make_model
from onsight.models.file import load_model_file
from onsight.models.preprocessing import Preprocessing
from onsight.tensorfile import write_tensors

# From a file written before input_size existed; spelt out, because it must never change.
OLD = {
    "height": 28,
    "width": 32,
    "channels": 3,
    "fit": "crop",
    "background": [255, 0, 7],
    "pixel_limit": 64_000_000,
    "mean": [0.485, 0.1 + 0.2, 0.0],
    "std": [0.229, 0.224, 1.0],
    "precision": "bf16",
}
FORMAT = ImageFormat(28, 32, 3, "crop", (255, 0, 7), 64_000_000)
MEAN, STD = (0.485, 0.1 + 0.2, 0.0), (0.229, 0.224, 1.0)


def test_a_file_from_before_input_size_is_read():
    old = Preprocessing.of(OLD)
    assert old.format == FORMAT
    assert old.normalization == Normalization(MEAN, STD, (28, 32))
    assert old.input_shape == (3, 28, 32)
    assert old.precision == "bf16"
    assert list(old.facts().items()) == list(OLD.items())


@pytest.mark.parametrize("input_size", [None, (24, 20)])
def test_it_comes_back_equal_through_json(input_size):
    given = Preprocessing(
        **{**vars(FORMAT), "input_size": input_size}, mean=MEAN, std=STD, precision="fp32"
    )
    again = Preprocessing.of(json.loads(json.dumps(given.facts())))
    assert again == given
    assert again.format == ImageFormat(28, 32, 3, "crop", (255, 0, 7), 64_000_000, input_size)
    assert again.input_shape == (3, *(input_size or (28, 32)))
    assert again.normalization.size == again.input_shape[1:]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("height", "16", r"height: .*integer \(found '16'\)"),
        ("width", 0, r"width: .*greater than or equal to 1 \(found 0\)"),
        ("height", 99_999, "height: .*less than or equal to 16384"),
        ("channels", 2, "channels: .*1 or 3"),
        ("fit", "bend", "fit: .*'stretch', 'crop' or 'pad'"),
        ("background", [0, 0], "background.2: Field required"),
        ("background", [0, 0, 256], "background.2: .*255"),
        ("input_size", [28], "input_size.1: Field required"),
        ("mean", [0.5], "one mean and one std for each channel"),
        ("std", [1.0, 0.0, 1.0], "std.1: .*greater than 0"),
        ("mean", [0.5, float("nan"), 0.5], "mean.1: .*finite"),
        ("precision", "auto", "precision: .*'fp32', 'bf16' or 'fp16'"),
    ],
)
def test_damaged_facts_are_named(name, value, message):
    with pytest.raises(ModelError, match=f"preprocessing is incomplete or damaged: .*{message}"):
        Preprocessing.of({**OLD, name: value})


@pytest.mark.parametrize("name", OLD)
def test_missing_facts_are_named(name):
    facts = {key: value for key, value in OLD.items() if key != name}
    with pytest.raises(ModelError, match=f"damaged: {name}: Field required"):
        Preprocessing.of(facts)


def test_a_model_file_with_damaged_facts_is_named(tmp_path):
    path = tmp_path / "model.safetensors"
    facts = {"format": "onsight-model", "version": 3, "model": "linear", "classes": ["a", "b"]}
    facts |= {"results": {}, "provenance": {}}
    weights = {"onsight.seen": torch.zeros(0, dtype=torch.int64)}
    weights |= make_model("linear", (3, 28, 32), 2).state_dict()
    write_tensors(path, weights, facts | {"image": OLD})
    assert load_model_file(path).preprocessing.facts() == OLD
    write_tensors(path, weights, facts | {"image": {**OLD, "height": None}})
    with pytest.raises(ModelError, match=r"model.safetensors is not a complete .*height: .*None"):
        load_model_file(path)
