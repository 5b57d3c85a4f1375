"""The textbook nets against their forward written out by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.models.classic import Conv3, LeNet, Linear, Quick

K = 7


def parameters_of(net: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in net.parameters()]


def lenet_by_hand(x: Tensor, net: LeNet) -> Tensor:
    w1, b1, w2, b2, w3, b3, w4, b4, w5, b5 = parameters_of(net)
    x = F.max_pool2d(torch.relu(F.conv2d(x, w1, b1)), 2)
    x = F.max_pool2d(torch.relu(F.conv2d(x, w2, b2)), 2)
    x = x.reshape(len(x), -1)
    x = torch.relu(x @ w3.T + b3)
    x = torch.relu(x @ w4.T + b4)
    return x @ w5.T + b5


def conv3_by_hand(x: Tensor, net: Conv3) -> Tensor:
    w1, b1, w2, b2, w3, b3, w4, b4, w5, b5 = parameters_of(net)
    for weight, bias in ((w1, b1), (w2, b2), (w3, b3)):
        x = F.max_pool2d(torch.relu(F.conv2d(x, weight, bias)), 2)
    x = torch.relu(x.reshape(len(x), -1) @ w4.T + b4)
    return x @ w5.T + b5


def quick_by_hand(x: Tensor, net: Quick) -> Tensor:
    w1, b1, w2, b2, w3, b3, w4, b4, w5, b5 = parameters_of(net)
    for weight, bias in ((w1, b1), (w2, b2), (w3, b3)):
        x = F.max_pool2d(F.conv2d(F.pad(x, (2, 2, 2, 2)), weight, bias), 2)
    x = x.reshape(len(x), -1) @ w4.T + b4
    return x @ w5.T + b5


NETS = [(LeNet, lenet_by_hand), (Conv3, conv3_by_hand), (Quick, quick_by_hand)]


@pytest.mark.parametrize(("kind", "by_hand"), NETS)
@pytest.mark.parametrize("shape", [(3, 50, 50), (1, 41, 64)])
def test_forward_is_the_one_written_by_hand(kind, by_hand, shape):
    torch.manual_seed(0)
    net = kind(shape, K).double()
    images = torch.randn(4, *shape, dtype=torch.float64)
    for given in (images, images.to(memory_format=torch.channels_last)):
        logits = net(given)
        assert logits.shape == (4, K)
        torch.testing.assert_close(logits, by_hand(images, net), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("shape", [(1, 1, 5), (3, 7, 2)])
def test_linear_is_one_matrix_on_all_values(shape):
    torch.manual_seed(0)
    net = Linear(shape, K).double()
    weight, bias = parameters_of(net)
    images = torch.randn(4, *shape, dtype=torch.float64)
    expected = torch.stack([weight @ image.reshape(-1) + bias for image in images])
    torch.testing.assert_close(net(images), expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (LeNet, [(1, 6, 5), (6, 16, 5), 120, 84]),
        (Conv3, [(3, 32, 5), (32, 64, 5), (64, 128, 5), 512]),
        (Quick, [(3, 32, 5), (32, 32, 5), (32, 64, 5), 64]),
    ],
)
def test_layers_have_the_textbook_widths(kind, sizes):
    net = kind((sizes[0][0], 50, 50), K)
    found = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            found.append((module.in_channels, module.out_channels, module.kernel_size[0]))
        if isinstance(module, nn.Linear):
            found.append(module.out_features)
    assert found == [*sizes, K]


@pytest.mark.parametrize(
    ("kind", "shape", "flattened"),
    [
        (LeNet, (1, 32, 32), 16 * 5 * 5),
        (LeNet, (1, 28, 28), 16 * 4 * 4),
        (LeNet, (3, 16, 33), 16 * 1 * 5),
        (Conv3, (1, 50, 50), 128 * 2 * 2),
        (Conv3, (3, 36, 64), 128 * 1 * 4),
        (Quick, (3, 32, 32), 64 * 4 * 4),
        (Quick, (1, 28, 28), 64 * 3 * 3),
        (Quick, (3, 8, 17), 64 * 1 * 2),
    ],
)
def test_flattened_size_is_worked_out(kind, shape, flattened):
    linears = [module for module in kind(shape, K).modules() if isinstance(module, nn.Linear)]
    assert linears[0].in_features == flattened


@pytest.mark.parametrize(("kind", "least"), [(LeNet, 16), (Conv3, 36), (Quick, 8)])
def test_too_small_a_image_names_the_least_size(kind, least):
    kind((1, least, least), K)
    for height, width in ((least - 1, 200), (200, least - 1)):
        with pytest.raises(ModelError, match=f"at least {least}x{least}.*{height}x{width}"):
            kind((1, height, width), K)


@pytest.mark.parametrize("kind", [LeNet, Conv3, Quick])
def test_working_out_the_size_draws_no_random_numbers(kind):
    # Layer by layer, the weights are what plain torch gives from the same seed.
    torch.manual_seed(5)
    net = kind((1, 40, 40), K)
    torch.manual_seed(5)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            fresh: nn.Module = nn.Conv2d(module.in_channels, module.out_channels, 5)
        elif isinstance(module, nn.Linear):
            fresh = nn.Linear(module.in_features, module.out_features)
        else:
            continue
        assert torch.equal(fresh.weight, module.weight)
        assert torch.equal(fresh.bias, module.bias)
