"""Oracle: the outputs of blocks as forward hooks see them."""

import pytest
import timm
import torch
from torch import nn

import onsight
from onsight.models.build import build_model
from onsight.models.catalog import make_model
from onsight.models.file import load_model_file
from onsight.models.head import feature_layer, feature_size, find_head, use_intermediate_layers
from onsight.models.intermediate import IntermediateNet, compute_layers
from onsight.report.console import SilentReporter

BLOCKS = {
    "tf_efficientnet_lite0": [f"blocks.{block}" for block in range(2, 7)],
    "test_resnet": [info["module"] for info in timm.create_model("test_resnet").feature_info],
    "test_vit": [f"blocks.{block}" for block in range(6)],
}
SIZES = {"tf_efficientnet_lite0": 64, "test_resnet": 48, "test_vit": 160}


@pytest.fixture(params=[*BLOCKS])
def name(request):
    return request.param


def make_net(name):
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=3).eval()


@torch.no_grad()
def test_the_head_receives_the_last_layer_and_the_mean_of_each_block(name):
    net, outputs, last = make_net(name), [], []
    for block in BLOCKS[name][-5:]:
        net.get_submodule(block).register_forward_hook(lambda *call: outputs.append(call[2]))
    net.get_classifier().register_forward_pre_hook(lambda *call: last.append(call[1][0]))
    images = torch.rand(4, 3, SIZES[name], SIZES[name])
    net(images)
    expected = [last[0]]
    for maps in outputs:
        tokens = maps[:, net.num_prefix_tokens :].mean(1) if maps.dim() == 3 else None
        expected.append(maps.mean((2, 3)) if tokens is None else tokens)
    found = compute_layers(net, images)
    assert len(found) == 1 + len(BLOCKS[name][-5:])
    for layer, one in zip(found, expected, strict=True):
        torch.testing.assert_close(layer, one)
    wrapped = use_intermediate_layers(net, (3, SIZES[name], SIZES[name]), 3).eval()
    assert isinstance(wrapped, IntermediateNet)
    assert feature_size(wrapped) == expected[0].shape[1]
    head = find_head(wrapped)
    assert torch.equal(wrapped(images), torch.zeros(4, 3))
    nn.init.normal_(head.weight)
    torch.testing.assert_close(wrapped(images), head(torch.cat(expected, dim=1)))


@pytest.mark.parametrize("name", ["compact", "deit_tiny_distilled_patch16_224"])
def test_other_networks_stay_as_they_are(name):
    shape = (3, 224, 224)
    net = make_model(name, shape, 3)
    assert use_intermediate_layers(net, shape, 3) is net


def test_a_network_whose_last_layer_timm_computes_otherwise_stays_as_it_is(monkeypatch):
    net = make_net("test_resnet")
    forward_head = net.forward_head
    monkeypatch.setattr(net, "forward_head", lambda *args, **options: 2 * forward_head(*args))
    monkeypatch.setattr(
        type(net), "forward", lambda self, images: forward_head(self.forward_features(images))
    )
    assert use_intermediate_layers(net, (3, 48, 48), 3) is net


def test_a_users_layer_of_the_same_name_is_not_taken_for_it():
    net = nn.Sequential()
    net.last_layer, net.last_features, net.fc = nn.Identity(), 3, nn.Linear(8, 2)
    assert feature_layer(net) is net.fc
    assert feature_size(net) == 8


def test_only_a_frozen_run_uses_them_and_its_file_has_them(bars, tmp_path, backbone):
    fields = {"model": "test_resnet", "image_size": 16, "threads": 1, "epochs": 1}
    fields |= {"weights": str(backbone.model), "reporter": SilentReporter()}
    frozen = onsight.train(bars, out=tmp_path / "frozen", freeze=True, **fields)
    tuned = onsight.train(bars, out=tmp_path / "tuned", **fields)
    assert isinstance(build_model(load_model_file(frozen.path)), IntermediateNet)
    assert not isinstance(build_model(load_model_file(tuned.path)), IntermediateNet)
    assert onsight.evaluate(frozen.path, bars)["loss"] == frozen.results["loss"]
