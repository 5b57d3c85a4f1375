"""Oracle: the same convolution in float64."""

from itertools import product

import torch
import torch.nn.functional as F
from timm.layers import Conv2dSame, StdConv2d
from torch import nn

from onsight.models.trial_forward import find_narrow_input

CASES = [
    (kernel, stride, width, padding)
    for kernel, stride, width, padding in product((1, 2, 3, 5), (1, 2, 3), range(1, 6), (0, 1, 2))
    if 2 * padding <= kernel <= width + 2 * padding
]


def is_wrong_in_bf16(net, width):
    """Whether a gradient of the convolution's weights differs by more than bf16 rounds."""
    images = torch.randn(2, 16, 5, width).bfloat16()
    weight = net[0].weight.detach().bfloat16()
    gradients = []
    for dtype in (torch.bfloat16, torch.float64):
        mine = weight.to(dtype, copy=True).requires_grad_()
        output = F.conv2d(images.to(dtype), mine, None, net[0].stride, net[0].padding)
        torch.full((weight.numel(),), float("nan"))  # freed: uninitialized memory is not zero then
        output.square().sum().backward()
        gradients.append(mine.grad.double())
    return not torch.allclose(*gradients, rtol=0, atol=0.05 * float(gradients[1].abs().max()))


def test_every_convolution_with_wrong_gradients_in_bf16_is_found():
    torch.manual_seed(0)
    found = []
    for kernel, stride, width, padding in CASES:
        net = nn.Sequential(nn.Conv2d(16, 16, kernel, stride, padding, bias=False))
        found.append(bool(find_narrow_input(net, (16, 5, width))))
        if is_wrong_in_bf16(net, width):
            assert found[-1], (kernel, stride, width, padding)
    assert 0 < sum(found) < len(found) / 5


def conv(kernel, **options):
    return nn.Conv2d(1, 1, kernel, 2, kernel // 2, **options)


def test_the_first_one_is_named_and_modes_stay():
    net = nn.Sequential(conv(1), nn.Dropout().eval(), conv(3), conv(3))
    modes = [module.training for module in net.modules()]
    assert find_narrow_input(net, (1, 8, 8)) == ""
    assert find_narrow_input(net, (1, 8, 4)) == "3.weight"
    assert find_narrow_input(net, (1, 8, 1)) == "2.weight"
    assert [module.training for module in net.modules()] == modes


def test_only_weights_that_are_trained_count():
    assert find_narrow_input(conv(3).requires_grad_(False), (1, 8, 1)) == ""
    assert find_narrow_input(StdConv2d(1, 1, 3, 2, 1), (1, 8, 1)) == "a computed weight"


def test_padding_before_a_convolution_widens_its_input():
    assert find_narrow_input(Conv2dSame(1, 1, 3, 2), (1, 8, 1)) == ""


def test_inputs_may_be_given_by_name():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv(3)

        def forward(self, images):
            return self.conv(input=images)

    assert find_narrow_input(Named(), (1, 8, 1)) == "conv.weight"
