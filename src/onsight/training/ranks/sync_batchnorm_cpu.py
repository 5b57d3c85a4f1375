"""Batch norm over the images of all ranks on the CPU, where torch has no SyncBatchNorm.

Ioffe and Szegedy, arXiv:1502.03167; sums and gradients as in that paper, summed over ranks.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from onsight.training.ranks.world import World


class WholeBatchNorm(TorchFunctionMode):
    """While active, batch norm in training uses the statistics of all ranks' images."""

    weight = 1.0  # of this rank's images in the statistics

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the shared batch norm instead of torch's."""
        options = options or {}
        if function is F.batch_norm:
            return self._batch_norm(*arguments, **options)
        return function(*arguments, **options)

    def _batch_norm(
        self,
        inputs: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            rest = (weight, bias, training, momentum, eps)
            return F.batch_norm(inputs, running_mean, running_var, *rest)
        self.world.count_sync()
        count, mean, variance = _whole_statistics(inputs.detach(), self.weight)
        if running_mean is not None and running_var is not None:
            unbiased = variance * (count / max(count - 1, 1.0))
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        own = (mean, variance, count, self.weight, eps)
        outputs: Tensor = _Normalize.apply(inputs, weight, bias, *own)
        return outputs


class _Normalize(torch.autograd.Function):
    """Normalise by statistics that depend on the inputs of every rank."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: float,
        own_weight: float,
        eps: float,
    ) -> Tensor:
        mean, variance = mean.to(inputs.dtype), variance.to(inputs.dtype)
        ctx.save_for_backward(inputs, weight, mean, (variance + eps).rsqrt())
        ctx.count, ctx.own_weight = count, own_weight
        return F.batch_norm(inputs, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        inputs, weight, mean, scale = ctx.saved_tensors
        sides, places = _sides(inputs), _places(inputs)
        centred = inputs - mean.view(sides)
        own_sum = gradient.sum(places)
        own_product = (gradient * centred).sum(places)
        sums = torch.cat([own_sum, own_product]).double()
        dist.all_reduce(sums)
        whole_sum, whole_product = (sums / ctx.count).to(inputs.dtype).chunk(2)
        slope = whole_product * scale.square()
        back = gradient - whole_sum.view(sides) - centred * slope.view(sides)
        factor = ctx.own_weight * (scale if weight is None else scale * weight)
        for_weight = None if weight is None else own_product * scale
        for_bias = own_sum if ctx.needs_input_grad[2] else None
        return back * factor.view(sides), for_weight, for_bias, None, None, None, None, None


def _whole_statistics(inputs: Tensor, own_weight: float) -> tuple[float, Tensor, Tensor]:
    """Count, mean (C,) and biased variance (C,) over all ranks, in float64."""
    variance, mean = torch.var_mean(inputs, _places(inputs), correction=0)
    variance, mean = variance.double(), mean.double()
    own = own_weight * (inputs.numel() // inputs.shape[1])
    sums = torch.cat([mean.new_ones(1), mean, variance + mean.square()]) * own
    dist.all_reduce(sums)
    count = float(sums[0])
    mean, square = (sums[1:] / count).chunk(2)
    return count, mean, (square - mean.square()).clamp(min=0)


def _places(inputs: Tensor) -> list[int]:
    return [side for side in range(inputs.ndim) if side != 1]


def _sides(inputs: Tensor) -> tuple[int, ...]:
    return (1, -1, *[1] * (inputs.ndim - 2))
