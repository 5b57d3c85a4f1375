"""The default net against its forward written out by hand, and its cost."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.models.compact import Compact, stem_stride

K = 5


def norm_by_hand(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    def column(key: str) -> Tensor:
        return weights[f"{name}.{key}"].view(1, -1, 1, 1)

    scaled = (x - column("running_mean")) / (column("running_var") + 1e-5).sqrt()
    return scaled * column("weight") + column("bias")


def layer_by_hand(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    x = F.conv2d(x, weights[f"{name}.0.weight"], padding=1)
    return torch.relu(norm_by_hand(x, weights, f"{name}.1"))


def compact_by_hand(x: Tensor, weights: dict[str, Tensor], stride: int) -> Tensor:
    x = F.max_pool2d(F.conv2d(x, weights["stem.0.weight"], stride=stride, padding=1), 2)
    x = torch.relu(norm_by_hand(x, weights, "stem.2"))
    x = layer_by_hand(x, weights, "stage1")
    for stage in ("stage2", "stage3"):
        x = layer_by_hand(F.max_pool2d(x, 2), weights, f"{stage}.1")
        inside = layer_by_hand(x, weights, f"{stage}.2.first")
        inside = F.conv2d(inside, weights[f"{stage}.2.last.weight"], padding=1)
        x = torch.relu(x + norm_by_hand(inside, weights, f"{stage}.2.last_norm"))
    flat = x.flatten(2)
    both = torch.cat([flat.mean(2), flat.max(2).values], dim=1)
    return both @ weights["head.weight"].T + weights["head.bias"]


@pytest.mark.parametrize(("shape", "stride"), [((1, 28, 28), 1), ((3, 50, 70), 2)])
def test_forward_is_the_one_written_by_hand(shape, stride):
    torch.manual_seed(0)
    net = Compact(shape, K).double()
    with torch.no_grad():  # every norm does something, as after training
        for name, tensor in net.state_dict().items():
            if "running_mean" in name or "norm.bias" in name:
                tensor.normal_()
            if "running_var" in name or "norm.weight" in name:
                tensor.uniform_(0.5, 2)
    images = torch.randn(3, *shape, dtype=torch.float64)
    expected = compact_by_hand(images, net.state_dict(), stride)
    for given in (images, images.to(memory_format=torch.channels_last)):
        with torch.no_grad():
            logits = net.eval()(given)
        torch.testing.assert_close(logits, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    "size", [(8, 8), (9, 8), (8, 500), (15, 15), (28, 28), (48, 49), (97, 31), (224, 224)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_from_8_pixels_on(size, channels):
    net = Compact((channels, *size), K).eval()
    with torch.no_grad():
        assert net(torch.zeros(2, channels, *size)).shape == (2, K)


@pytest.mark.parametrize("size", [(7, 8), (100, 7)])
def test_too_small_a_image_names_the_least_size(size):
    with pytest.raises(ModelError, match="at least 8x8"):
        Compact((1, *size), K)


def multiply_adds(net: nn.Module, shape: tuple[int, int, int]) -> int:
    total = 0

    def count(module: nn.Module, _: object, output: Tensor) -> None:
        nonlocal total
        weights_a_value = module.weight[0].numel()  # type: ignore[union-attr, index]
        total += output[0].numel() * int(weights_a_value)  # type: ignore[operator]

    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(count)
    with torch.no_grad():
        net.eval()(torch.zeros(1, *shape))
    return total


def test_cost_is_small_and_grows_slowly():
    cost = {
        shape: multiply_adds(Compact(shape, 10), shape)
        for shape in ((1, 28, 28), (3, 48, 48), (3, 64, 64), (3, 128, 128), (3, 224, 224))
    }
    assert 3e6 < cost[1, 28, 28] < 6e6
    assert max(cost.values()) < 27e6
    assert cost[3, 128, 128] < 2.5 * cost[1, 28, 28]


@pytest.mark.parametrize(
    ("size", "stride"),
    [
        ((28, 28), 1),
        ((48, 48), 1),
        ((49, 49), 2),
        ((96, 96), 2),
        ((97, 97), 4),
        ((193, 193), 8),
        ((8, 1000), 1),
        ((16, 1000), 2),
    ],
)
def test_stem_strides_double_with_the_side(size, stride):
    assert stem_stride(*size) == stride
    assert stem_stride(*reversed(size)) == stride


def test_residual_blocks_start_as_the_identity():
    net = Compact((1, 28, 28), K)
    for stage in (net.stage2, net.stage3):
        maps = torch.rand(2, stage[2].last.out_channels, 5, 5)
        assert torch.equal(stage[2](maps), maps)
    convolution = net.stage3[1][0]
    fan_out = convolution.out_channels * 9
    assert convolution.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)


def test_it_learns_and_every_parameter_takes_part():
    torch.manual_seed(0)
    net = Compact((1, 16, 16), 4, width=16)
    start = {name: tensor.clone() for name, tensor in net.named_parameters()}
    images, labels = torch.randn(16, 1, 16, 16), torch.arange(16) % 4
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert [
        name for name, parameter in net.named_parameters() if torch.equal(parameter, start[name])
    ] == []


def test_same_seed_same_weights():
    def weights(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return Compact((1, 28, 28), K).state_dict()

    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
