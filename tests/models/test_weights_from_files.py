"""Weights from files: what is read, what fits, what is counted, and what is refused."""

import argparse
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from onsight.data.fit import ImageFormat
from onsight.errors import ModelError
from onsight.models.catalog import expected_input, make_model, preferred_size
from onsight.models.file import ModelFile, save_model
from onsight.models.preprocessing import ExpectedInput, Preprocessing
from onsight.models.weights import load_into, read_weights
from onsight.tensorfile import write_tensors

SHAPE = (3, 32, 32)


@pytest.fixture
def net():
    torch.manual_seed(3)
    return make_model("compact", SHAPE, 5)


def started(path, name="compact", shape=SHAPE, classes=5):
    told = []
    net = make_model(name, shape, classes, weights=str(path), report=told.append)
    return net, told[0]


def assert_same(net: nn.Module, tensors: dict[str, torch.Tensor], but: str = "nothing") -> None:
    for name, tensor in tensors.items():
        assert name.startswith(but) or torch.equal(net.state_dict()[name], tensor), name


@pytest.mark.parametrize("ending", [".safetensors", ".pth", ".pt", ".bin"])
def test_every_tensor_of_a_file_is_loaded(net, tmp_path, ending):
    path, tensors = tmp_path / f"w{ending}", net.state_dict()
    save_file(tensors, path) if ending == ".safetensors" else torch.save(tensors, path)
    filled, loaded = started(path)
    assert_same(filled, tensors)
    total = len(tensors)
    assert loaded.sentence == f"weights: {total} of {total} tensors from {path}"


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "model_ema", "state_dict_ema"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "net.", "module.net."])
def test_wrappers_and_prefixes(net, tmp_path, wrapper, prefix):
    tensors = {prefix + name: tensor for name, tensor in net.state_dict().items()}
    torch.save({wrapper: tensors, "epoch": 3, "args": argparse.Namespace(lr=1)}, tmp_path / "w.pth")
    filled, loaded = started(tmp_path / "w.pth")
    assert_same(filled, net.state_dict())
    assert loaded.source.endswith(f"w.pth ({wrapper})")
    assert not loaded.new
    assert not loaded.skipped


def test_the_average_is_preferred(net, tmp_path):
    last = {name: torch.zeros_like(tensor) for name, tensor in net.state_dict().items()}
    torch.save({"state_dict": last, "state_dict_ema": net.state_dict()}, tmp_path / "w.pth")
    assert_same(started(tmp_path / "w.pth")[0], net.state_dict())


def test_a_prefix_of_the_network_itself_stays():
    inner = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    outer = nn.ModuleDict({"model": inner})
    tensors = {name: torch.randn_like(tensor) for name, tensor in outer.state_dict().items()}
    assert load_into(outer, tensors, "x").loaded == 4
    assert_same(outer, tensors)


def test_a_head_for_other_classes_starts_at_zero(net, tmp_path):
    tensors = net.state_dict()
    torch.save(tensors, tmp_path / "w.pth")
    filled, loaded = started(tmp_path / "w.pth", classes=8)
    assert_same(filled, tensors, but="head.")
    assert filled.head.weight.shape[0] == 8
    logits = filled.eval()(torch.rand(4, *SHAPE))
    first = nn.functional.cross_entropy(logits, torch.arange(4))
    torch.testing.assert_close(first, torch.tensor(8.0).log())
    assert loaded.sentence == (
        f"weights: {len(tensors) - 2} of {len(tensors)} tensors from {tmp_path / 'w.pth'}; "
        "head.weight and head.bias start new (8 classes instead of 5)"
    )
    assert list(loaded.skipped) == ["head.weight", "head.bias"]


def test_tensors_without_a_place_and_a_missing_head_are_said(net, tmp_path):
    tensors = {name: tensor for name, tensor in net.state_dict().items() if name != "head.bias"}
    torch.save({**tensors, "teacher.weight": torch.ones(3)}, tmp_path / "w.pth")
    filled, loaded = started(tmp_path / "w.pth")
    assert_same(filled, tensors, but="head.")
    assert not filled.head.weight.any()  # half of a head means nothing
    assert loaded.loaded == len(tensors) - 1
    assert "head.weight and head.bias start new (not in the file)" in loaded.sentence
    assert "teacher.weight of the file not used (no such tensor)" in loaded.sentence


def test_grey_images_see_three_equal_channels(net, tmp_path):
    torch.save(net.state_dict(), tmp_path / "w.pth")
    grey = started(tmp_path / "w.pth", shape=(1, 32, 32))[0].eval().double()
    images = torch.rand(2, 1, 32, 32, dtype=torch.float64)
    expected = net.eval().double()(images.expand(-1, 3, -1, -1))
    torch.testing.assert_close(grey(images), expected, atol=1e-5, rtol=1e-5)


def test_timms_nets_take_files_at_another_size_as_timm_does(tmp_path):
    torch.manual_seed(1)
    stored = make_model("test_vit", (3, 160, 160), 7).state_dict()
    torch.save(stored, tmp_path / "w.pth")
    filled, loaded = started(tmp_path / "w.pth", "test_vit", (3, 64, 64), 7)
    assert filled.pos_embed.shape != stored["pos_embed"].shape
    assert_same(filled, stored, but="pos_embed")
    assert not loaded.new


def test_the_model_of_another_run_brings_its_preprocessing(net, tmp_path):
    small = ImageFormat(20, 24, 3)
    preprocessing = Preprocessing(
        **vars(small), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), precision="fp32"
    )
    file = ModelFile("compact", tuple("abcde"), preprocessing, {}, {}, net.state_dict())
    save_model(tmp_path / "model.safetensors", file)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        filled, loaded = started(path)
        assert_same(filled, net.state_dict())
        assert not loaded.skipped
        assert preferred_size("compact", str(path)) == (20, 24)
        expected = expected_input("compact", str(path))
        assert expected.scaling(3) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
        assert expected.describe_differences((20, 24), "stretch") == ""


def test_grey_images_are_scaled_by_the_mean_of_the_channels():
    expected = ExpectedInput((0.2, 0.4, 0.6), (0.1, 0.2, 0.6), (8, 8))
    assert expected.scaling(3) == ((0.2, 0.4, 0.6), (0.1, 0.2, 0.6))
    mean, std = expected.scaling(1)
    assert (mean, std) == (pytest.approx((0.4,)), pytest.approx((0.3,)))


def test_a_config_beside_the_weights_says_what_they_expect(net, tmp_path):
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    facts = {"mean": [0.3] * 3, "std": [0.2] * 3, "input_size": [3, 96, 80], "crop_pct": 0.9}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"pretrained_cfg": {**facts, "interpolation": "bicubic"}}))
    expected = expected_input("compact", str(tmp_path))
    assert expected == ExpectedInput((0.3,) * 3, (0.2,) * 3, (96, 80), 0.9, "bicubic")
    assert expected.describe_differences((64, 64), "stretch") == (
        "these weights were trained for 96x80 pixels (here 64x64), bicubic scaling (here "
        "bilinear), a central crop of 90% of each side (here the whole image, --fit stretch)"
    )
    config.write_text("{}")
    assert expected_input("compact", str(tmp_path)) is None
    for damage in ("{", '{"pretrained_cfg": {"mean": [0.3]}}', "[]", "[" * 100_000):
        config.write_text(damage)
        with pytest.raises(ModelError, match=r"pretrained_cfg in .*config.json cannot be used"):
            read_weights(tmp_path)


class _Evil:
    def __reduce__(self):
        return (Path.touch, (Path(__file__).with_name("it-ran"),))


def write_bad_file(kind: str, path: Path) -> None:
    tensors = make_model("compact", SHAPE, 5).state_dict()
    if kind == "code":
        torch.save({"state_dict": tensors, "more": _Evil()}, path)
    elif kind == "raw pickle":
        path.write_bytes(pickle.dumps(_Evil()))
    elif kind == "truncated":
        save = save_file if path.suffix == ".safetensors" else torch.save
        save(tensors, path)
        path.write_bytes(path.read_bytes()[:-2000])
    elif kind == "text":
        path.write_text("not weights at all")
    elif kind == "list":
        torch.save([torch.zeros(2)], path)
    elif kind == "no tensors":
        torch.save({"epoch": 3, "best": 0.5}, path)
    elif kind == "itself":
        content = {}
        content["state_dict"] = content
        torch.save(content, path)
    elif kind == "facts":
        write_tensors(path, tensors, [])
    elif kind == "members":
        write_tensors(path, tensors, {"members": ["a"], "feature_member": "a"})
    elif kind == "sparse":
        torch.save({**tensors, "head.weight": tensors["head.weight"].to_sparse()}, path)
    elif kind == "meta":
        torch.save({**tensors, "head.weight": tensors["head.weight"].to("meta")}, path)
    elif kind == "complex":
        torch.save({**tensors, "head.weight": tensors["head.weight"] + 1j}, path)
    elif kind == "compressed":
        torch.save({"w": torch.zeros(100_000)}, path.with_suffix(".plain"))
        with (
            zipfile.ZipFile(path.with_suffix(".plain")) as plain,
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for name in plain.namelist():
                packed.writestr(name, plain.read(name))
    elif kind == "another net":
        torch.save(make_model("lenet", SHAPE, 5).state_dict(), path)
    elif kind == "wider":
        torch.save({**tensors, "stage2.0.0.weight": torch.zeros(3)}, path)
    elif kind == "twice":
        torch.save({**tensors, "module.head.bias": torch.zeros(5)}, path)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("missing", "w.pth", "there is no weights file .*w.pth"),
        ("text", "w.npz", "w.npz is not a weights file: pass a .safetensors"),
        ("text", "w.pth", "w.pth is (truncated, damaged or )?not a weights file"),
        ("text", "w.safetensors", "w.safetensors is truncated, damaged or not safetensors"),
        ("truncated", "w.safetensors", "w.safetensors is truncated"),
        ("truncated", "w.pth", "w.pth is truncated"),
        ("code", "w.pth", "only code can make.*state_dict.. alone"),
        ("raw pickle", "w.bin", "only code can make|not a weights file"),
        ("list", "w.pt", "holds a list, not weights by name"),
        ("itself", "w.pt", "holds no tensors by name, only state_dict"),
        ("facts", "w.safetensors", "is not the model of a run"),
        ("members", "w.safetensors", "is not the model of a run"),
        ("sparse", "w.pth", "head.weight is not a plain tensor of real numbers"),
        ("meta", "w.pth", "head.weight is not a plain tensor of real numbers"),
        ("complex", "w.pth", "head.weight is not a plain tensor of real numbers"),
        ("compressed", "w.pth", "it is compressed, with 0.4 MB in it"),
        ("no tensors", "w.pt", "holds no tensors by name, only epoch and best"),
        ("another net", "w.pth", "fits no layer of Compact: it has .*, the network"),
        ("twice", "w.pth", "two tensors for 'head.bias'"),
    ],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_bad_files_are_refused_in_one_message(tmp_path, kind, name, message):
    write_bad_file(kind, tmp_path / name)
    with pytest.raises(ModelError, match=message) as caught:
        make_model("compact", SHAPE, 5, weights=str(tmp_path / name))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert not Path(__file__).with_name("it-ran").exists()


def test_another_architecture_says_how_much_of_it_fits(tmp_path):
    stored = make_model("resnet10t", (3, 64, 64), 5).state_dict()
    torch.save(stored, tmp_path / "w.pth")
    own = make_model("resnet14t", (3, 64, 64), 5).state_dict()
    fit = sum(name in stored and stored[name].shape == own[name].shape for name in own)
    with pytest.raises(ModelError, match=rf"another architecture.*: {fit} of {len(own)} tensors"):
        make_model("resnet14t", (3, 64, 64), 5, weights=str(tmp_path / "w.pth"))


def test_a_damaged_model_of_a_run_is_refused(net, tmp_path):
    preprocessing = Preprocessing(
        **vars(ImageFormat(32, 32, 3)), mean=(0.0,) * 3, std=(1.0,) * 3, precision="fp32"
    )
    file = ModelFile("compact", tuple("abcde"), preprocessing, {}, {}, net.state_dict())
    save_model(tmp_path / "model.safetensors", file)
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    data[-9] ^= 1
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match="checksum does not match"):
        read_weights(tmp_path)
