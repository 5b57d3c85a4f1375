"""The model file: the same net comes back, damage is refused, no code is run."""

import random
import resource
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from onsight.errors import ModelError
from onsight.models.build import build_model
from onsight.models.catalog import make_model
from onsight.models.file import ModelFile, image_keys, load_model_file, save_model
from onsight.models.out_of_distribution import OutOfDistributionDetector
from onsight.models.preprocessing import Preprocessing
from onsight.tensorfile import read_tensors, write_tensors

PREPROCESSING = Preprocessing(
    height=16,
    width=20,
    channels=1,
    fit="stretch",
    background=(255, 255, 255),
    pixel_limit=10**6,
    mean=(0.5,),
    std=(0.2,),
    precision="fp32",
)

COLOUR = PREPROCESSING.model_copy(
    update={"height": 518, "width": 518, "channels": 3, "mean": (0.5,) * 3, "std": (0.2,) * 3}
)


def model_file(name: str, net: nn.Module) -> ModelFile:
    return ModelFile(
        model=name,
        classes=("cat", "chien", "犬"),
        preprocessing=PREPROCESSING,
        results={"accuracy": 0.75, "classes": [{"name": "cat", "n": 4}]},
        provenance={"config": {"seed": 3}},
        weights=dict(net.state_dict()),
        seen=np.array([5, -3, 9], np.int64),
    )


def test_the_temperature_comes_back_and_an_old_file_has_none(tmp_path):
    file, path = model_file("mine:net", tiny()), tmp_path / "model.safetensors"
    save_model(path, replace(file, temperature=1.37))
    assert load_model_file(path).temperature == 1.37
    tensors, facts = read_tensors(path)
    del facts["temperature"]
    write_tensors(path, tensors, facts)
    assert load_model_file(path).temperature == 1.0
    for damaged in (0, -1.0, "2", float("nan")):
        write_tensors(path, tensors, facts | {"temperature": damaged})
        with pytest.raises(ModelError, match="the temperature must be a number above 0"):
            load_model_file(path)


def tiny() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize("name", ["compact", "lenet", "resnet10t"])
def test_the_same_net_comes_back(tmp_path, name):
    torch.manual_seed(0)
    net = make_model(name, (1, 16, 20), 3)
    net(torch.randn(8, 1, 16, 20))  # norms have statistics now
    file = model_file(name, net.eval())
    save_model(tmp_path / "model.safetensors", file)
    for path in (tmp_path, str(tmp_path / "model.safetensors")):
        loaded = load_model_file(path)
        state = torch.get_rng_state()
        again = build_model(loaded)
        assert torch.equal(torch.get_rng_state(), state)
        assert not any(module.training for module in again.modules())
        images = torch.randn(2, 1, 16, 20)
        with torch.no_grad():
            assert torch.equal(net(images), again(images))
    facts = ("model", "classes", "preprocessing", "results", "provenance")
    for field in facts:
        assert getattr(loaded, field) == getattr(file, field)
    assert loaded.seen.tolist() == [-3, 5, 9]


def test_tied_weights_can_be_saved(tmp_path):
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    save_model(tmp_path / "m.safetensors", model_file("my.nets:Tied", net))
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    build_model(load_model_file(tmp_path / "m.safetensors"), other)
    assert torch.equal(other[0].weight, net[0].weight)
    assert torch.equal(other[1].weight, net[0].weight)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """One bit flipped, the end cut off, or a block zeroed; never the same bytes."""
    place = rng.randrange(len(data))
    kind = rng.choice(["flip", "flip", "cut", "zero"])
    if kind == "cut":
        return data[:place]
    if kind == "flip":
        return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    end = min(len(data), place + rng.choice([1, 16, 64, 512]))
    zeroed = data[:place] + bytes(end - place) + data[end:]
    return zeroed if zeroed != data else damaged(data, rng)


def test_any_damage_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(path, model_file("my.nets:Tiny", tiny()))
    data = path.read_bytes()
    rng = random.Random(0)
    for number in range(1400):
        broken = damaged(data, rng)
        assert broken != data
        path.write_bytes(broken)
        try:
            load_model_file(path)
        except ModelError:
            continue
        pytest.fail(f"damage {number} went unnoticed")
    path.write_bytes(data)
    assert load_model_file(path).model == "my.nets:Tiny"


def test_what_is_not_a_model_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(ModelError, match=r"has no model.safetensors"):
        load_model_file(tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        load_model_file(path)
    path.write_bytes(b"PK\x03\x04 a zip of pickles")
    with pytest.raises(ModelError, match="damaged or not an Onsight file"):
        load_model_file(path)
    write_tensors(path, {"a": torch.zeros(1)}, {"step": 3})
    with pytest.raises(ModelError, match="is not an Onsight model file"):
        load_model_file(path)
    write_tensors(path, {}, {"format": "onsight-model", "version": 99})
    with pytest.raises(ModelError, match=r"version 99 .*reads versions 3 and 4.*Upgrade"):
        load_model_file(path)
    write_tensors(path, {}, {"format": "onsight-model", "version": 1, "model": "lenet"})
    with pytest.raises(ModelError, match=r"development version of Onsight before 0\.1\.0"):
        load_model_file(path)
    write_tensors(path, {}, {"format": "onsight-model", "version": 3, "model": "lenet"})
    with pytest.raises(ModelError, match=r"not a complete Onsight model file.*classes"):
        load_model_file(path)


def test_a_giant_net_is_refused_before_it_is_made(tmp_path):
    file = model_file("vit_giant_patch14_dinov2", tiny())
    save_model(tmp_path / "model.safetensors", replace(file, preprocessing=COLOUR))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match="not those of 'vit_giant.*far larger"):
        build_model(load_model_file(tmp_path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image", {**PREPROCESSING.facts(), "height": 10**9}),
        ("image", {**PREPROCESSING.facts(), "input_size": [10**9, 3]}),
        ("classes", "cat"),
        ("classes", [1, 2]),
        ("classes", ["cat", "dog", "cat"]),
        ("results", []),
        ("provenance", None),
        ("temperature", "warm"),
        ("hidden_units", -1),
        ("model", None),
    ],
)
def test_an_altered_file_is_refused(tmp_path, field, value):
    path = tmp_path / "model.safetensors"
    save_model(path, model_file("my.nets:Tiny", tiny()))
    tensors, facts = read_tensors(path)
    write_tensors(
        path, {name: tensor.clone() for name, tensor in tensors.items()}, facts | {field: value}
    )
    with pytest.raises(ModelError, match="not a complete Onsight model file"):
        load_model_file(path)


@pytest.mark.parametrize(
    "facts", [{"classes": ["\ud800"]}, {"classes": ["a\0"]}, {"temperature": 10**400}]
)
def test_facts_that_little_else_can_hold_are_refused(tmp_path, facts):
    write_tensors(tmp_path / "model.safetensors", {}, facts)
    with pytest.raises(ModelError, match=f"not an Onsight file: {next(iter(facts))} has "):
        load_model_file(tmp_path)


@pytest.mark.parametrize("seen", [torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64)])
def test_other_keys_of_images_are_refused(tmp_path, seen):
    path = tmp_path / "model.safetensors"
    save_model(path, model_file("my.nets:Tiny", tiny()))
    tensors, facts = read_tensors(path)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    write_tensors(path, tensors | {"onsight.seen": seen}, facts)
    with pytest.raises(ModelError, match="onsight.seen must be int64"):
        load_model_file(path)


def test_a_file_never_has_code_imported(tmp_path, monkeypatch):
    (tmp_path / "canary.py").write_text(
        "import pathlib\npathlib.Path('sang').touch()\nfrom torch import nn\n"
        "def Net(): return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    net = tiny()
    save_model(tmp_path / "model.safetensors", model_file("canary:Net", net))
    file = load_model_file(tmp_path)
    with pytest.raises(ModelError, match=r"--module canary:Net.*module="):
        build_model(file)
    assert "canary" not in sys.modules
    assert not (tmp_path / "sang").exists()
    filled = build_model(file, tiny())
    assert torch.equal(filled[1].weight, net[1].weight)
    assert not filled.training


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 3)), r"1.weight is \(3, 4\), .*\(3, 5\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False)), "1.bias is not part of"),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3)), "0.weight is missing; 0.bias is missing"),
        (nn.BatchNorm2d(3), "weight is missing; bias is missing; running_mean .* and 4 more"),
    ],
)
def test_weights_that_do_not_fit_are_named(module, message):
    file = model_file("my.nets:Tiny", tiny())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(ModelError, match=f"do not fit 'my.nets:Tiny': .*{message}"):
        build_model(file, module)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_image_keys_are_the_first_half_of_the_digests():
    digests = np.random.default_rng(0).integers(0, 256, (5, 16), np.uint8)
    expected = [int.from_bytes(bytes(row[:8]), "big", signed=True) for row in digests]
    assert image_keys(digests).tolist() == expected


def test_what_tells_unlike_images_comes_back_and_an_old_file_has_none(tmp_path):
    file, path = model_file("mine:net", tiny()), tmp_path / "model.safetensors"
    save_model(path, file)
    assert load_model_file(path).out_of_distribution is None
    stored = OutOfDistributionDetector(torch.randn(7, 4).half(), 0.125, 0.01, 100)
    save_model(path, replace(file, out_of_distribution=stored))
    loaded = load_model_file(path)
    assert torch.equal(loaded.out_of_distribution.bank, stored.bank)
    assert replace(loaded.out_of_distribution, bank=stored.bank) == stored
    build_model(loaded, tiny())
    with pytest.raises(ModelError, match="does not have the 4 features"):
        build_model(replace(loaded, weights=wider().state_dict()), wider())


def test_damaged_out_of_distribution_facts_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    stored = OutOfDistributionDetector(torch.zeros(7, 4).half(), 0.125, 0.01, 100)
    save_model(path, replace(model_file("mine:net", tiny()), out_of_distribution=stored))
    tensors, facts = read_tensors(path)
    kept = facts["out_of_distribution"]
    for damaged in (
        {**kept, "threshold": "2"},
        {**kept, "false_alarm_rate": -1},
        {**kept, "threshold": None},
    ):
        write_tensors(path, tensors, facts | {"out_of_distribution": damaged})
        with pytest.raises(ModelError, match="numbers of at least 0"):
            load_model_file(path)
    for damaged in ({}, [], 3):
        write_tensors(path, tensors, facts | {"out_of_distribution": damaged})
        with pytest.raises(ModelError, match="not a complete Onsight model file"):
            load_model_file(path)
    for bank in (torch.zeros(7, 4), torch.zeros(7).half(), torch.zeros(4, 4).half()):
        write_tensors(path, {**tensors, "onsight.out_of_distribution": bank}, facts)
        with pytest.raises(ModelError, match="must be float16"):
            load_model_file(path)


def wider() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(5, 3))
