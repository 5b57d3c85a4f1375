"""Folders for the Hub: what timm and Onsight make of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import ModelCard

import onsight
from onsight import cli
from onsight.data.normalization import Normalization
from onsight.errors import OutputError
from onsight.export.hub_folder import write_hub_folder
from onsight.models.build import build_model
from onsight.models.catalog import make_model
from onsight.models.classifier import Classifier
from onsight.models.file import ModelFile, load_model_file, save_model
from onsight.models.head import add_hidden_layer
from onsight.models.preprocessing import Preprocessing

CLASSES = ("cat", "dog", "eel")


def save_untrained(path, model, size=32, channels=3, **changes):
    """A model file with random weights."""
    torch.manual_seed(3)
    net = make_model(model, (channels, size, size), len(CLASSES))
    if changes.get("hidden_units"):
        add_hidden_layer(net, changes["hidden_units"])
    preprocessing = Preprocessing(
        height=size,
        width=size,
        channels=channels,
        fit="pad",
        background=(255, 255, 255),
        pixel_limit=10**6,
        mean=(0.4, 0.5, 0.6)[:channels],
        std=(0.2, 0.3, 0.25)[:channels],
        precision="fp32",
    )
    config = {"cache_folder": "/home/me/cache", "checkpoints": "/home/me/checkpoints"}
    provenance = {"data": "/home/me/secret/pets", "config": config}
    seen = np.array([-5, 3, 2**62], np.int64)
    file = ModelFile(model, CLASSES, preprocessing, {}, provenance, dict(net.state_dict()), seen)
    save_model(path, replace(file, **changes))
    return path


@pytest.mark.parametrize(
    ("model", "size", "channels", "temperature"),
    [
        ("resnet18", 32, 3, 1.7),
        ("mobilenetv3_small_050", 32, 1, 0.6),
        ("vit_tiny_patch16_224", 32, 3, 2.0),
    ],
)
def test_timm_gives_onsights_logits(tmp_path, model, size, channels, temperature):
    path = save_untrained(
        tmp_path / "m.safetensors", model, size, channels, temperature=temperature
    )
    written = write_hub_folder(path, tmp_path / "hub")
    assert written.timm_problem == ""
    file = load_model_file(path)
    images = torch.randint(0, 256, (4, size, size, channels), dtype=torch.uint8)
    own = Classifier(
        build_model(file),
        file.preprocessing.normalization,
        "fp32",
        torch.device("cpu"),
        temperature,
    )
    net = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).eval()
    config = timm.data.resolve_model_data_config(net)
    inputs = Normalization(tuple(config["mean"]), tuple(config["std"])).apply(images)
    with torch.inference_mode():
        assert torch.allclose(net(inputs), own(images), rtol=1e-4, atol=1e-5)
    assert config["input_size"] == (channels, size, size)
    assert (config["crop_pct"], config["crop_mode"]) == (1.0, "border")
    assert tuple(net.pretrained_cfg["label_names"]) == CLASSES

    again = onsight.load(tmp_path / "hub", device="cpu")
    assert torch.allclose(again.classifier(images), own(images), rtol=1e-4, atol=1e-5)
    assert again.classes == CLASSES
    assert again.file.seen.tolist() == [-5, 3, 2**62]
    card = ModelCard.load(tmp_path / "hub" / "README.md")
    assert card.data.library_name == "timm"
    assert "timm.create_model" in card.text
    assert {path.name for path in (tmp_path / "hub").iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }


@pytest.mark.parametrize(("model", "units"), [("lenet", 0), ("test_resnet", 8)])
def test_what_timm_cannot_load_is_for_onsight_alone(tmp_path, model, units, capsys):
    path = save_untrained(tmp_path / "m.safetensors", model, hidden_units=units, temperature=1.5)
    with pytest.raises(SystemExit):
        cli.main(["card", str(path), "--to", "hub-folder"])
    said = capsys.readouterr()
    assert "only Onsight can load it" in said.err
    folder = tmp_path / "hub"
    assert said.out == f"{folder}\n"
    assert not (folder / "config.json").exists()
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "onsight"
    assert "timm cannot load this folder" in card.text
    assert "timm.create_model" not in card.text
    images = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    logits = [onsight.load(source, device="cpu").classifier(images) for source in (path, folder)]
    assert torch.equal(*logits)


def test_nobodys_disk_is_told(tmp_path):
    path = save_untrained(tmp_path / "m.safetensors", "test_resnet")
    write_hub_folder(path, tmp_path / "hub")
    for file in (tmp_path / "hub").iterdir():
        assert b"/home/me" not in file.read_bytes()
    assert load_model_file(tmp_path / "hub").provenance["data"] == "pets"


def test_a_folder_of_somebodys_own_stays_and_an_earlier_one_is_replaced(tmp_path):
    timm_like = save_untrained(tmp_path / "a.safetensors", "test_resnet")
    own = save_untrained(tmp_path / "b.safetensors", "lenet")
    folder = tmp_path / "hub"
    write_hub_folder(timm_like, folder)
    write_hub_folder(own, folder)
    assert not (folder / "config.json").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    with pytest.raises(OutputError, match="holds other files"):
        write_hub_folder(own, tmp_path / "mine")
    assert json.loads((tmp_path / "mine" / "config.json").read_text()) == {}


def test_damaged_keys_of_seen_images_are_noticed(tmp_path):
    from onsight.errors import ModelError
    from onsight.tensorfile import read_tensors, write_tensors

    path = save_untrained(tmp_path / "m.safetensors", "lenet")
    write_hub_folder(path, tmp_path / "hub")
    tensors, facts = read_tensors(tmp_path / "hub" / "model.safetensors")
    write_tensors(tmp_path / "odd.safetensors", dict(tensors), facts | {"seen": "AAAA"})
    with pytest.raises(ModelError, match="not a complete Onsight model file"):
        load_model_file(tmp_path / "odd.safetensors")


def test_a_blend_is_for_onsight_alone(blended, shared_bars, tmp_path):
    written = write_hub_folder(blended, tmp_path / "hub")
    assert written.timm_problem == "it is a blend of several networks"
    assert not (tmp_path / "hub" / "config.json").exists()
    images = sorted(shared_bars.rglob("*.png"))[:9]
    again, before = onsight.load(tmp_path / "hub"), onsight.load(blended)
    assert np.array_equal(again.predict_proba(images), before.predict_proba(images))
    assert again.file.seen.tolist() == before.file.seen.tolist()
    assert all(str(file.provenance["data"]) == "bars" for file in again.file.members.values())
