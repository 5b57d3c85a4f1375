"""Making networks by name."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from onsight.errors import ModelError
from onsight.models import catalog
from onsight.models.catalog import (
    expected_input,
    make_model,
    model_names,
    preferred_size,
)
from onsight.models.classic import Conv3, LeNet, Linear, Quick
from onsight.models.compact import Compact, Sprint
from onsight.models.preprocessing import ExpectedInput

OWN = {
    "compact": Compact,
    "sprint": Sprint,
    "lenet": LeNet,
    "conv3": Conv3,
    "quick": Quick,
    "linear": Linear,
}


def test_builtin_names_come_first_then_timms():
    names = model_names()
    assert names[: len(OWN)] == list(OWN)
    assert {"resnet10t", "test_vit", "tf_efficientnet_lite0"} <= set(names)
    assert len(names) == len(set(names)) > 1000


@pytest.mark.parametrize("name", OWN)
def test_own_nets_by_name(name):
    net = make_model(name, (3, 40, 48), 6)
    assert type(net) is OWN[name]
    assert net.training
    assert net(torch.zeros(2, 3, 40, 48)).shape == (2, 6)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["resnet10t", "resnet10t.c3_in1k", "test_vit"])
def test_timm_nets_by_name_at_another_size(name, channels):
    net = make_model(name, (channels, 64, 96), 5).eval()
    with torch.no_grad():
        assert net(torch.zeros(2, channels, 64, 96)).shape == (2, 5)
    if name == "test_vit":
        assert net.patch_embed.img_size == (64, 96)


@pytest.mark.parametrize("name", ["compact", "lenet", "resnet10t", "test_vit"])
def test_same_seed_same_weights_whether_checked_or_not(name, monkeypatch):
    def made() -> tuple[nn.Module, torch.Tensor]:
        torch.manual_seed(11)
        return make_model(name, (1, 32, 32), 3), torch.rand(4)

    checked, after_check = made()
    calls = []
    monkeypatch.setattr(catalog, "check_output", lambda *given: calls.append(given))
    unchecked, after = made()
    assert len(calls) == 1
    for key, tensor in checked.state_dict().items():
        assert torch.equal(tensor, unchecked.state_dict()[key]), key
    assert torch.equal(after_check, after)


@pytest.mark.parametrize(
    ("name", "near"),
    [("compcat", "compact"), ("resnet10tt", "resnet10t"), ("Lenet", "lenet")],
)
def test_unknown_name_gives_near_misses(name, near):
    for ask in (lambda: make_model(name, (1, 28, 28), 3), lambda: preferred_size(name)):
        with pytest.raises(ModelError, match=rf"no model '{name}'.*Did you mean .*{near}"):
            ask()


def test_unknown_tag_gives_those_there_are():
    with pytest.raises(ModelError, match=r"'nope' of 'resnet10t'.*resnet10t.c3_in1k"):
        make_model("resnet10t.nope", (3, 64, 64), 3)


def test_a_size_the_net_cannot_take_names_the_one_it_wants():
    with pytest.raises(ModelError, match=r"'test_vit' cannot process .* 28x28 .*160x160"):
        make_model("test_vit", (3, 28, 28), 3)


def test_what_fails_inside_timm_is_reported(monkeypatch):
    def fails(*_: object, **__: object) -> nn.Module:
        raise AssertionError("no such window")

    monkeypatch.setattr("timm.create_model", fails)
    with pytest.raises(ModelError, match=r"timm cannot make 'test_vit' .*30x20.*no such window"):
        make_model("test_vit", (3, 30, 20), 3)


def test_a_net_that_refuses_its_size_is_made_without(monkeypatch):
    given = []

    def makes(name: str, **arguments: object) -> nn.Module:
        given.append(sorted(arguments))
        if "img_size" in arguments:
            raise TypeError("__init__() got an unexpected keyword argument 'img_size'")
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 4))

    monkeypatch.setattr("timm.create_model", makes)
    make_model("test_vit", (3, 8, 8), 4)
    assert given == [
        ["img_size", "in_chans", "num_classes", "pretrained"],
        ["in_chans", "num_classes", "pretrained"],
    ]


def test_preferred_sizes():
    sizes = {name: preferred_size(name) for name in [*OWN, "test_vit", "resnet10t", "my.net:Net"]}
    assert sizes == {
        "compact": None,
        "sprint": None,
        "lenet": (32, 32),
        "conv3": (50, 50),
        "quick": None,
        "linear": None,
        "test_vit": (160, 160),
        "resnet10t": (176, 176),
        "my.net:Net": None,
    }


def test_normalization_of_published_weights():
    assert expected_input("compact") is None
    assert expected_input("my.net:Net") is None
    lite = expected_input("tf_efficientnet_lite1")
    assert lite == ExpectedInput((0.5,) * 3, (0.5,) * 3, (240, 240), 0.882, "bicubic")
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert expected_input("resnet10t").scaling(3) == imagenet


@pytest.mark.parametrize("name", ["compact", "my_nets:Net"])
def test_pretrained_needs_published_weights(name):
    with pytest.raises(
        ModelError, match=f"'{name}' has no published weights.*tf_efficientnet_lite0 --pretrained"
    ):
        make_model(name, (1, 28, 28), 3, pretrained=True)


def test_own_nets_do_not_import_timm():
    code = (
        "import sys; from onsight.models.catalog import make_model, preferred_size; "
        "make_model('compact', (1, 28, 28), 3); preferred_size('lenet'); "
        "sys.exit('timm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
