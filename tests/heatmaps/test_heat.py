"""Heat maps. Oracles: a planted cue, algebra written out by hand, and the net's own state."""

import sys

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from onsight.data.normalization import Normalization
from onsight.errors import ConfigError, ModelError
from onsight.heatmaps.heat import find_spatial_layers, heat_maps
from onsight.models.blend import Blend
from onsight.models.catalog import make_model
from onsight.models.classifier import Classifier
from onsight.models.head import find_heads

pytest.importorskip("captum")


def classifier_of(net, channels=1, precision="fp32", temperature=1.0):
    plain = Normalization((0.4,) * channels, (0.2,) * channels)
    return Classifier(net, plain, precision, torch.device("cpu"), temperature)


def noisy(count, shape, seed=0):
    """Random images: uint8 (n, H, W, C)."""
    channels, height, width = shape
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 120, (count, height, width, channels), generator=rng).byte()


def put_cues(images, classes, corners):
    """A bright bar in a corner, across for 0 and down for 1; where it is: bool (n, H, W)."""
    side, far = 8, images.shape[1] - 8
    inside = np.zeros(images.shape[:3], bool)
    for number, (kind, corner) in enumerate(zip(classes.tolist(), corners.tolist(), strict=True)):
        top, left = far * (corner // 2), far * (corner % 2)
        square = images[number, top : top + side, left : left + side]
        square.zero_()
        (square[3:5] if kind == 0 else square[:, 3:5]).fill_(255)
        inside[number, top : top + side, left : left + side] = True
    return inside


@pytest.fixture(scope="module")
def cue_classifier():
    """compact, trained on images whose class only a bar in one of the corners tells."""
    torch.manual_seed(0)
    net = make_model("compact", (1, 28, 28), 2)
    classifier = classifier_of(net)
    images, classes = noisy(256, (1, 28, 28)), torch.arange(256) % 2
    put_cues(images, classes, torch.arange(256) // 2 % 4)
    inputs = classifier.normalization.apply(images)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    for _ in range(6):
        for rows in torch.randperm(256).split(32):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[rows]), classes[rows]).backward()
            optimizer.step()
    return classifier


def test_most_of_the_heat_is_on_the_only_cue(cue_classifier):
    images, classes = noisy(32, (1, 28, 28), seed=1), torch.arange(32) % 2
    inside = put_cues(images, classes, torch.arange(32) // 2 % 4)
    assert (cue_classifier(images).argmax(1) == classes).all()
    heat = heat_maps(cue_classifier, images, classes)
    assert heat.shape == (32, 28, 28)
    assert heat.dtype == np.float32
    assert heat.min() >= 0
    assert np.allclose(heat.max((1, 2)), 1)
    assert ((heat * inside).sum((1, 2)) / heat.sum((1, 2))).mean() >= 0.8


def test_of_two_cues_the_one_of_the_class_that_is_asked_for_is_hot(cue_classifier):
    images, zeros = noisy(16, (1, 28, 28), seed=2), torch.zeros(16, dtype=torch.int64)
    across = put_cues(images, zeros, zeros)
    down = put_cues(images, zeros + 1, zeros + 3)
    for asked, own, other in ((zeros, across, down), (zeros + 1, down, across)):
        heat = heat_maps(cue_classifier, images, asked)
        assert (heat * own).sum() > 4 * (heat * other).sum()


def test_a_linear_end_gives_exactly_what_each_place_adds():
    """With one map, the heat is each place's part of the logits' difference, cubed."""
    torch.manual_seed(0)
    conv, head = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(3 * 64, 2)
    net = nn.Sequential(conv, nn.Flatten(), head)
    images, classes = noisy(4, (1, 8, 8)), torch.tensor([0, 1, 0, 1])
    classifier = classifier_of(net)
    inputs = classifier.normalization.apply(images)
    plain = inputs.mean((2, 3), keepdim=True).expand_as(inputs)
    weight = head.weight.detach().reshape(2, 3, 8, 8)
    weight = (weight - weight.mean(0))[classes]
    added = ((conv(inputs) - conv(plain)).detach() * weight).sum(1).clamp(min=0)
    expected = (added / added.amax((1, 2), keepdim=True)) ** 3
    assert np.allclose(heat_maps(classifier, images, classes), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "name", ["sprint", "lenet", "quick", "conv3", "resnet18", "efficientnet_lite0"]
)
def test_convolutional_nets(name):
    torch.manual_seed(0)
    shape = (1, 50, 40)
    net = make_model(name, shape, 3)
    nn.init.normal_(find_heads(net)[0].weight)  # those of timm start at zero, when nothing is hot
    heat = heat_maps(classifier_of(net), noisy(2, shape), torch.tensor([0, 2]))
    assert heat.shape == (2, *shape[1:])
    assert (heat.max((1, 2)) == 1).all()
    assert len(np.unique(heat)) > 100


TINY = {"num_classes": 3, "in_chans": 1, "img_size": 32, "patch_size": 4, "depth": 2}


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("vit_tiny_patch16_224", TINY | {"embed_dim": 24, "num_heads": 2}),
        ("deit_tiny_distilled_patch16_224", TINY | {"embed_dim": 24, "num_heads": 2}),
        (
            "swin_tiny_patch4_window7_224",
            {"num_classes": 3, "in_chans": 1, "img_size": 56, "embed_dim": 12}
            | {"depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)},
        ),
    ],
)
def test_transformers_are_looked_into_at_their_patches(name, facts):
    torch.manual_seed(0)
    net = timm.create_model(name, **facts)
    shape = (1, facts["img_size"], facts["img_size"])
    found = find_spatial_layers(net, torch.zeros(1, *shape))
    assert [type(layer) for layer in found.layers] == [nn.Conv2d]
    heat = heat_maps(classifier_of(net), noisy(2, shape), torch.tensor([0, 2]))
    assert heat.shape == (2, *shape[1:])
    assert (heat.max((1, 2)) == 1).all()


def test_the_last_layer_at_each_of_the_last_sizes_is_taken():
    net = make_model("compact", (1, 28, 28), 2)
    found = find_spatial_layers(net, torch.zeros(1, 1, 28, 28))
    assert found.layers == [net.stem[0], net.stage1, net.stage2]  # 28, 14 and 7 rows, but not 3
    small = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3))
    assert find_spatial_layers(small, torch.zeros(1, 1, 7, 7)).layers == [small[1]]  # 5 rows, not 3


def test_a_net_without_convolutions_is_refused():
    classifier = classifier_of(make_model("linear", (1, 8, 8), 2))
    with pytest.raises(
        ModelError, match="Linear cannot be used for heat maps: it has no convolution"
    ):
        heat_maps(classifier, noisy(1, (1, 8, 8)), torch.tensor([0]))


class Cut(nn.Module):
    """A net behind whose convolution no gradient goes."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 2, 3), nn.Linear(2, 2)

    def forward(self, images):
        return self.head(self.conv(images).detach().mean((2, 3)))


def test_a_net_without_gradients_is_refused():
    with pytest.raises(ModelError, match="Cut cannot be used for heat maps: its gradients"):
        heat_maps(classifier_of(Cut()), noisy(1, (1, 12, 12)), torch.tensor([0]))


def state_of(net):
    tensors = [*net.named_parameters(), *net.named_buffers()]
    return {
        "values": [(name, tensor.detach().clone()) for name, tensor in tensors],
        "grads": [(parameter.requires_grad, parameter.grad) for parameter in net.parameters()],
        "modes": [module.training for module in net.modules()],
        "hooks": [
            (len(module._forward_hooks), len(module._forward_pre_hooks)) for module in net.modules()
        ],
    }


@pytest.mark.parametrize("frozen", [False, True])
def test_the_net_and_the_random_state_stay_as_they_were(frozen):
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5),
        nn.Flatten(), nn.Linear(4 * 100, 2),
    )  # fmt: skip
    net.train()[1].eval()
    net.requires_grad_(not frozen)
    before, random = state_of(net), torch.get_rng_state()
    with torch.inference_mode():  # as a caller may be in it
        heat = heat_maps(classifier_of(net), noisy(3, (1, 12, 12)), torch.tensor([0, 1, 0]))
    after = state_of(net)
    assert heat.max() == 1
    for (name, old), (same, new) in zip(before.pop("values"), after.pop("values"), strict=True):
        assert name == same
        assert torch.equal(old, new)
    assert after == before
    assert torch.equal(torch.get_rng_state(), random)


def test_an_untrained_head_of_zeros_has_no_heat():
    net = make_model("compact", (1, 28, 28), 2)
    nn.init.zeros_(net.head.weight)
    assert not heat_maps(classifier_of(net), noisy(1, (1, 28, 28)), torch.tensor([1])).any()


def test_neither_temperature_nor_precision_nor_batching_changes_heat(cue_classifier):
    images, classes = noisy(20, (1, 28, 28)), torch.arange(20) % 2
    heat = heat_maps(cue_classifier, images, classes)
    other = classifier_of(cue_classifier.net, precision="bf16", temperature=3.0)
    alone = [heat_maps(other, images[n : n + 1], classes[n : n + 1]) for n in range(20)]
    assert np.allclose(np.concatenate(alone), heat, atol=1e-3)


def test_no_images_have_no_heat(cue_classifier):
    nothing = torch.zeros(0, 28, 28, 1, dtype=torch.uint8)
    assert heat_maps(cue_classifier, nothing, torch.zeros(0, dtype=torch.int64)).shape == (
        0,
        28,
        28,
    )


def test_without_captum_the_command_to_install_it_is_told(cue_classifier, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[heatmaps\]'"):
        heat_maps(cue_classifier, noisy(1, (1, 28, 28)), torch.tensor([0]))


def test_the_heat_of_a_blend_is_the_mean_of_those_members_that_have_maps(cue_classifier):
    torch.manual_seed(1)
    other = classifier_of(make_model("compact", (1, 28, 28), 2))
    flat = classifier_of(nn.Sequential(nn.Flatten(), nn.Linear(784, 2)))
    members = {"flat": flat, "cue": cue_classifier, "other": other}
    blend = Blend(members, {"flat": 0.5, "cue": 0.4, "other": 0.1}, "cue")
    images, classes = noisy(18, (1, 28, 28)), torch.arange(18) % 2
    put_cues(images, classes, torch.arange(18) % 4)
    cue, rest = heat_maps(cue_classifier, images, classes), heat_maps(other, images, classes)
    mean = 0.8 * cue + 0.2 * rest
    expected = mean / mean.max(axis=(1, 2), keepdims=True)
    assert np.allclose(heat_maps(blend, images, classes), expected, atol=1e-6)
    with pytest.raises(ModelError, match="heat maps"):
        heat_maps(Blend({"flat": flat}, {"flat": 1.0}, "flat"), images, classes)
