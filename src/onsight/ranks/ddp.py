"""Wraps a network so that several ranks train it; the network itself is unaware of it.

Each rank computes its share of a batch, and torch's DistributedDataParallel averages the gradients
as they become ready. Batch norm uses the statistics of the whole batch, so the update is the same
for any number of ranks.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from onsight.data.loader import find_positions
from onsight.evaluation.predictions import PredictionTable
from onsight.ranks.world import World
from onsight_explain.devices import module_of


class Replica:
    """This rank's copy of a network; all copies start from the first rank's weights.

    Args:
        net: The network.
        shape: (C, H, W) of its inputs.
        device: The device that it is on.
        world: The ranks.
        is_recorded: Whether steps are recorded as a CUDA graph; all work then belongs into
            `on_stream`.

    Attributes:
        parallel: The wrapped network.
        stream: The stream on which steps are recorded, if they are.
        has_idle_parameters: Whether some trainable parameters get no gradient.
    """

    def __init__(
        self,
        net: nn.Module,
        shape: tuple[int, int, int],
        device: torch.device,
        world: World,
        is_recorded: bool = False,
    ) -> None:
        self.world, self.device = world, device
        # The wrapper keeps the autograd nodes that accumulate gradients, and torch requires that
        # they be made, and warmed up, on the stream that is recorded.
        self.stream: Any = module_of(device).Stream(device) if is_recorded else None
        has_batch_norm = any(isinstance(module, _BatchNorm) for module in net.modules())
        self.statistics = WholeBatchNorm(world) if has_batch_norm and device.type == "cpu" else None
        if has_batch_norm and device.type != "cpu":
            from timm.layers import convert_sync_batchnorm  # also converts timm's own norms

            net = convert_sync_batchnorm(net)
        self.net = net
        self.has_idle_parameters = _has_idle_parameters(net, shape, device)
        self.parallel = self._wrap()

    def _wrap(self) -> DistributedDataParallel:
        with self.on_stream():
            parallel = DistributedDataParallel(
                self.net,
                device_ids=None if self.device.type == "cpu" else [self.device],
                gradient_as_bucket_view=True,
                find_unused_parameters=self.has_idle_parameters,
            )
        if self.stream is None:  # a replayed graph does not run hooks in Python
            parallel.register_comm_hook(self.world, _count_and_all_reduce)
        return parallel

    def rewrap(self) -> None:
        """Wrap the network again after an interrupted step; all ranks must do so together."""
        self.parallel._remove_autograd_hooks()
        self.parallel = self._wrap()

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Run the block on `stream`, in order with the work before and after it."""
        if self.stream is None:
            yield
            return
        module = module_of(self.device)
        outer = module.current_stream(self.device)
        self.stream.wait_stream(outer)
        with module.stream(self.stream):
            yield
        outer.wait_stream(self.stream)

    def run(self, forward: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """Return the logits (B, K) of this rank's share of a batch, which may be empty.

        Args:
            forward: `parallel` or its compiled form.
            inputs: (B, C, H, W).
        """
        with self.statistics or nullcontext():
            if len(inputs):
                return forward(inputs)
            # All ranks must take part in every step: an empty share uses a blank of weight 0.
            if self.statistics:
                self.statistics.weight = 0.0
            blank = inputs.new_zeros(1, *inputs.shape[1:])
            idle = forward(blank)[:0]
            if self.statistics:
                self.statistics.weight = 1.0
            return idle

    def no_sync(self) -> AbstractContextManager[None]:
        """Only accumulate gradients in the block; the next backward pass sends them."""
        context: AbstractContextManager[None] = self.parallel.no_sync()
        return context


def _count_and_all_reduce(world: World, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """All-reduce gradients as torch does, and count it for the watchdog: backward can hang."""
    world.count_sync()
    return allreduce_hook(cast(dist.ProcessGroup, dist.group.WORLD), bucket)


def gather_per_image(part: PredictionTable, ids: Tensor, world: World) -> PredictionTable:
    """Return the results of all ranks in the order of ids (n,), each image at most once."""
    if world.size == 1:
        return part
    positions = find_positions(ids, torch.from_numpy(part.ids))
    is_present = torch.zeros(len(ids), dtype=torch.uint8)
    is_present[positions] = 1
    kept = world.all_reduce(is_present).numpy() > 0
    columns = {}
    for name, column in vars(part).items():
        values = torch.from_numpy(column)
        dtype = torch.uint8 if values.dtype == torch.bool else values.dtype
        width = [int(world.agree(size)) for size in values.shape[1:]]  # rank 0 has the first image
        whole = torch.zeros(len(ids), *width, dtype=dtype)
        values = values.view(len(values), *width)
        whole[positions] = values.to(dtype)
        columns[name] = world.all_reduce(whole).to(values.dtype).numpy()[kept]
    return PredictionTable(**columns)


def _has_idle_parameters(net: nn.Module, shape: tuple[int, int, int], device: torch.device) -> bool:
    """Return whether backward leaves trainable parameters without gradients; DDP needs to know."""
    modes = [(module, module.training) for module in net.modules()]
    inputs = torch.zeros(2, *shape, device=device, dtype=next(net.parameters()).dtype)
    with torch.random.fork_rng(devices=[]):
        net.eval()(inputs).sum().backward()
    for module, training in modes:
        module.training = training
    trainable = [parameter for parameter in net.parameters() if parameter.requires_grad]
    idle = any(parameter.grad is None for parameter in trainable)
    for parameter in trainable:
        parameter.grad = None
    return idle


class WholeBatchNorm(TorchFunctionMode):
    """While active, batch norm in training uses the statistics of all ranks' images.

    Attributes:
        weight: The weight of this rank's images in the statistics.
    """

    weight = 1.0

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
        """Replace torch's batch norm."""
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
            return F.batch_norm(
                inputs, running_mean, running_var, weight, bias, training, momentum, eps
            )
        self.world.count_sync()
        count, mean, variance = _whole_statistics(inputs.detach(), self.weight)
        if running_mean is not None and running_var is not None:
            unbiased = variance * (count / max(count - 1, 1.0))
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        outputs: Tensor = _Normalize.apply(
            inputs, weight, bias, mean, variance, count, self.weight, eps
        )
        return outputs


class _Normalize(torch.autograd.Function):
    """Normalizes by statistics that depend on the inputs of every rank."""

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
        shape, dims = _channel_shape(inputs), _reduced_dims(inputs)
        centered = inputs - mean.view(shape)
        own_sum = gradient.sum(dims)
        own_product = (gradient * centered).sum(dims)
        sums = torch.cat([own_sum, own_product]).double()
        dist.all_reduce(sums)
        mean_sum, mean_product = (sums / ctx.count).to(inputs.dtype).chunk(2)
        slope = mean_product * scale.square()
        grad_normalized = gradient - mean_sum.view(shape) - centered * slope.view(shape)
        factor = ctx.own_weight * (scale if weight is None else scale * weight)
        grad_inputs = grad_normalized * factor.view(shape)
        grad_weight = None if weight is None else own_product * scale
        grad_bias = own_sum if ctx.needs_input_grad[2] else None
        return grad_inputs, grad_weight, grad_bias, None, None, None, None, None


def _whole_statistics(inputs: Tensor, own_weight: float) -> tuple[float, Tensor, Tensor]:
    """Return the count, mean (C,) and biased variance (C,) over all ranks, in float64."""
    variance, mean = torch.var_mean(inputs, _reduced_dims(inputs), correction=0)
    variance, mean = variance.double(), mean.double()
    own_count = own_weight * (inputs.numel() // inputs.shape[1])
    sums = torch.cat([mean.new_ones(1), mean, variance + mean.square()]) * own_count
    dist.all_reduce(sums)
    count = float(sums[0])
    mean, square = (sums[1:] / count).chunk(2)
    return count, mean, (square - mean.square()).clamp(min=0)


def _reduced_dims(inputs: Tensor) -> list[int]:
    """Return all dimensions but the channels'."""
    return [dim for dim in range(inputs.ndim) if dim != 1]


def _channel_shape(inputs: Tensor) -> tuple[int, ...]:
    """Return the shape that broadcasts a value per channel over the inputs."""
    return (1, -1, *[1] * (inputs.ndim - 2))
