"""The net for short trainings against its forward written out by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.errors import ModelError
from onsight.models.compact import Sprint, cosine_patches

K = 5


def layer_by_hand(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    def column(key: str) -> Tensor:
        return weights[f"{name}.1.{key}"].view(1, -1, 1, 1)

    x = F.conv2d(x, weights[f"{name}.0.weight"], padding=1)
    scaled = (x - column("running_mean")) / (column("running_var") + 1e-5).sqrt()
    return torch.relu(scaled * column("weight") + column("bias"))


def sprint_by_hand(x: Tensor, weights: dict[str, Tensor], stride: int) -> Tensor:
    patterns = cosine_patches(x.shape[1], stride + 2, 8).double()
    x = F.conv2d(x, patterns, stride=stride, padding=1)
    x = layer_by_hand(torch.relu(F.max_pool2d(x, 2)), weights, "stage1")
    x = layer_by_hand(F.max_pool2d(x, 2), weights, "stage2")
    x = layer_by_hand(F.max_pool2d(x, 2), weights, "stage3")
    flat = x.flatten(2)
    both = torch.cat([flat.mean(2), flat.max(2).values], dim=1)
    return both @ weights["head.weight"].T + weights["head.bias"]


@pytest.mark.parametrize(("shape", "stride"), [((1, 28, 28), 1), ((3, 50, 70), 2)])
def test_forward_is_the_one_written_by_hand(shape, stride):
    torch.manual_seed(0)
    net = Sprint(shape, K).double()
    with torch.no_grad():  # every norm does something, as after training
        for name, tensor in net.state_dict().items():
            if "running_mean" in name or ".1.bias" in name:
                tensor.normal_()
            if "running_var" in name or ".1.weight" in name:
                tensor.uniform_(0.5, 2)
    images = torch.randn(3, *shape, dtype=torch.float64)
    expected = sprint_by_hand(images, net.state_dict(), stride)
    for given in (images, images.to(memory_format=torch.channels_last)):
        with torch.no_grad():
            logits = net.eval()(given)
        torch.testing.assert_close(logits, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("size", [(8, 8), (9, 8), (8, 500), (28, 28), (48, 49), (224, 224)])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_from_8_pixels_on(size, channels):
    net = Sprint((channels, *size), K).eval()
    with torch.no_grad():
        assert net(torch.zeros(2, channels, *size)).shape == (2, K)


@pytest.mark.parametrize("size", [(7, 8), (100, 7)])
def test_too_small_a_image_names_the_least_size(size):
    with pytest.raises(ModelError, match="'sprint' needs images of at least 8x8"):
        Sprint((1, *size), K)


def test_it_learns_and_only_the_patterns_stay():
    torch.manual_seed(0)
    net = Sprint((1, 16, 16), 4)
    start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    images, labels = torch.randn(16, 1, 16, 16), torch.arange(16) % 4
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    now = net.state_dict()
    assert [name for name, tensor in now.items() if torch.equal(tensor, start[name])] == [
        "patterns"
    ]


def test_the_patterns_belong_to_the_model_file_and_nothing_is_computed_backwards_for_them():
    net = Sprint((3, 32, 32), K)
    assert net.state_dict()["patterns"].shape == (16, 3, 3, 3)
    assert "patterns" not in dict(net.named_parameters())
    assert not net.patterns.requires_grad
