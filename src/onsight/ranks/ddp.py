"""Wraps a network so that several ranks train it at once; the network itself is unaware of it.

Each rank computes its share of a batch, and torch's DistributedDataParallel averages the gradients
as they become ready. Batch norm's statistics are those of the whole batch, so the update is that
of one process, whatever the number of ranks.
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

    is_recorded: whether steps are recorded as a CUDA graph. Then all work belongs into `on_stream`.
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
        # For a graph, torch asks that the network be wrapped on a stream of its own, on which the
        # steps before it are made too: the wrapper keeps the nodes that add gradients up.
        self.stream: Any = module_of(device).Stream(device) if is_recorded else None
        normalises = any(isinstance(module, _BatchNorm) for module in net.modules())
        self.statistics = WholeBatchNorm(world) if normalises and device.type == "cpu" else None
        if normalises and device.type != "cpu":
            from timm.layers import convert_sync_batchnorm  # knows timm's own norms too

            net = convert_sync_batchnorm(net)
        self.net = net
        self.has_idle_parameters = _has_idle_parameters(net, shape, device)
        self.parallel = self._wrapped()

    def _wrapped(self) -> DistributedDataParallel:
        with self.on_stream():
            parallel = DistributedDataParallel(
                self.net,
                device_ids=None if self.device.type == "cpu" else [self.device],
                gradient_as_bucket_view=True,
                find_unused_parameters=self.has_idle_parameters,
            )
        if self.stream is None:  # a hook in Python would count only once what is replayed
            parallel.register_comm_hook(self.world, _count_and_add_up)
        return parallel

    def renew(self) -> None:
        """Forget a step that broke off; all ranks must do so at the same time."""
        self.parallel._remove_autograd_hooks()
        self.parallel = self._wrapped()

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Let the block's work go to the stream of the wrapped network, in order with the rest."""
        if self.stream is None:
            yield
            return
        module = module_of(self.device)
        around = module.current_stream(self.device)
        self.stream.wait_stream(around)
        with module.stream(self.stream):
            yield
        around.wait_stream(self.stream)

    def run(self, forward: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """The logits (B, K) of this rank's share of a batch, which may be empty.

        forward: that of `parallel`, or what torch.compile made of it.
        """
        with self.statistics or nullcontext():
            if len(inputs):
                return forward(inputs)
            # All ranks must take part in every step: without an image, with a blank of weight 0.
            if self.statistics:
                self.statistics.weight = 0.0
            blank = inputs.new_zeros(1, *inputs.shape[1:])
            idle = forward(blank)[:0]
            if self.statistics:
                self.statistics.weight = 1.0
            return idle

    def unsynced(self) -> AbstractContextManager[None]:
        """In this context, backward passes only accumulate gradients; a later one sends them."""
        waiting: AbstractContextManager[None] = self.parallel.no_sync()
        return waiting


def _count_and_add_up(world: World, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """All-reduce ready gradients as torch does; the watchdog counts it, since backward can hang."""
    world.count_sync()
    return allreduce_hook(cast(dist.ProcessGroup, dist.group.WORLD), bucket)


def gather_per_image(part: PredictionTable, ids: Tensor, world: World) -> PredictionTable:
    """The results of all ranks in the order of ids (n,), each image at most once."""
    if world.size == 1:
        return part
    places = find_positions(ids, torch.from_numpy(part.ids))
    seen = torch.zeros(len(ids), dtype=torch.uint8)
    seen[places] = 1
    kept = world.all_reduce(seen).numpy() > 0
    columns = {}
    for name, column in vars(part).items():
        values = torch.from_numpy(column)
        kind = torch.uint8 if values.dtype == torch.bool else values.dtype
        whole = torch.zeros(len(ids), dtype=kind)
        whole[places] = values.to(kind)
        columns[name] = world.all_reduce(whole).to(values.dtype).numpy()[kept]
    return PredictionTable(**columns)


def _has_idle_parameters(net: nn.Module, shape: tuple[int, int, int], device: torch.device) -> bool:
    """Whether a trial pass leaves trainable parameters without gradients, which DDP must know."""
    modes = [(module, module.training) for module in net.modules()]
    trial = torch.zeros(2, *shape, device=device, dtype=next(net.parameters()).dtype)
    with torch.random.fork_rng(devices=[]):
        net.eval()(trial).sum().backward()
    for module, training in modes:
        module.training = training
    trainable = [parameter for parameter in net.parameters() if parameter.requires_grad]
    idle = any(parameter.grad is None for parameter in trainable)
    for parameter in trainable:
        parameter.grad = None
    return idle


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
