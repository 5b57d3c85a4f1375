"""One optimisation step: forward, loss, backward, update. Nothing else trains."""

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from onsight.models.classifier import autocast
from onsight.ranks.ddp import Replica
from onsight.ranks.world import World
from onsight.step.deferred_losses import DeferredLosses, NonFiniteGradients
from onsight.step.losses import Loss
from onsight_explain.devices import is_out_of_memory, release_cached_memory

Forward = Callable[[Tensor], Tensor]  # inputs (B, C, H, W) to logits (B, K)


class Compiled:
    """Compiles for the size of a full batch, or of its largest part; others use the network as is.

    net: wrapped in torch's DistributedDataParallel already, if several ranks train it, as torch
    asks for; images: those of a full batch on this rank; replays: replay the forward and the
    backward pass of whole batches as CUDA graphs, which spares the host most of its work.
    """

    def __init__(self, net: nn.Module, images: int, replays: bool) -> None:
        self.net = net
        self.images = images
        self.whole: Forward = torch.compile(
            net, dynamic=False, mode="reduce-overhead" if replays else "default"
        )
        # No graphs: a gradient may lie in a graph's own memory, which the next part would overwrite
        # before it is added.
        self.part: Forward = torch.compile(net, dynamic=False, mode="default")

    def choose(self, images: int, parts: int) -> Forward:
        """The forward pass for so many images; parts: those that a batch is computed in."""
        if images != math.ceil(self.images / parts):
            return self.net
        return self.whole if parts == 1 else self.part


class StepListener:
    """Hears when steps cannot be computed as planned; ignores it by default."""

    def out_of_memory(self, parts: int) -> None:
        """Batches are computed in so many parts from now on; raise to refuse that."""

    def graph_refused(self, reason: str) -> None:
        """Steps cannot be replayed as a graph."""


class Step:
    """Makes one update from a batch of inputs (B, C, H, W) and targets.

    accumulate: parts that the batch is computed in; the update is that of the whole batch.
    replica: this rank's copy of the model when several ranks share each batch; compiled: the
    model's faster forward pass, if any; listener: hears when memory runs out or a graph cannot be
    recorded.
    """

    together = 1  # steps that are made at once
    refused = ""  # why steps are not replayed as a graph, if they were meant to be

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: Optimizer,
        *,
        precision: str,
        device: torch.device,
        clip_norm: float = 0.0,
        accumulate: int = 1,
        world: World | None = None,
        replica: Replica | None = None,
        compiled: Compiled | None = None,
        listener: StepListener | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.precision = precision
        self.device = device
        self.clip_norm = clip_norm
        self.accumulate = accumulate
        self.world = world or World()
        self.replica = replica
        self.compiled = compiled
        self.losses = DeferredLosses(device, self.world)
        self.listener = listener or StepListener()
        scales = precision == "fp16"  # fp16 gradients vanish without a scaled loss
        self.scaler = torch.amp.GradScaler(device.type, enabled=scales)
        # An accelerator would have to be waited for; a scaler leaves such updates out itself.
        self.guards_gradients = device.type == "cpu" and not scales

    def __call__(
        self, inputs: Tensor, targets: Tensor, global_labels: Tensor | None = None
    ) -> list[float]:
        """Update the model; returns the mean losses of the batches whose loss is known by now.

        On the CPU that is this batch's, elsewhere an earlier one's; `flush` returns the rest.
        global_labels: those of the whole batch, if inputs and targets are this rank's share of it.
        Raises NonFiniteStepError.

        When memory runs out before the update, batches are computed in twice as many parts from
        then on. In the update, it is an error: some weights may have changed by then.
        """
        self._make_gradients(inputs, targets, global_labels)
        known = self.losses.ready()
        self._update()
        return known

    def expect(self, images: int) -> None:
        """Take so many images for a full batch from now on."""
        if self.compiled:
            self.compiled.images = images

    def flush(self) -> list[float]:
        """The losses of all batches not yet returned. Raises NonFiniteStepError."""
        return self.losses.flush()

    @property
    def guards_weights(self) -> bool:
        """Whether a loss that is not finite changes no weights."""
        return self.losses.lag == 0

    def _make_gradients(
        self, inputs: Tensor, targets: Tensor, global_labels: Tensor | None
    ) -> None:
        """Forward and backward, in more parts as long as memory runs out."""
        while True:
            try:
                return self._try(inputs, targets, global_labels)
            except RuntimeError as error:
                if not is_out_of_memory(error) or not self._may_halve(len(inputs)):
                    raise
            self._halve()  # out here, where the error no longer holds the step's memory

    def _try(self, inputs: Tensor, targets: Tensor, global_labels: Tensor | None) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        *first, last = self._parts(inputs, targets)
        weight = self._weight(targets, global_labels)
        earlier: Tensor | None = None
        for part in first:
            with self.replica.unsynced() if self.replica else nullcontext():
                loss, share = self._forward(*part, weight)
                value = _weighed(loss.detach(), share)
                earlier = value if earlier is None else earlier + value
                self._backward(loss, share)
        loss, share = self._forward(*last, weight)
        value = _weighed(loss.detach(), share)
        self._take_loss(value if earlier is None else earlier + value)
        self._backward(loss, share)

    def _take_loss(self, loss: Tensor) -> None:
        self.losses.push(loss)

    def _may_halve(self, images: int) -> bool:
        # One of several ranks cannot do so alone: all must have the same number of parts.
        return self.world.size == 1 and 2 * self.accumulate <= images

    def _halve(self) -> None:
        self.losses.drop_unfinished()
        self.optimizer.zero_grad(set_to_none=True)
        release_cached_memory(self.device)
        self.listener.out_of_memory(2 * self.accumulate)  # may refuse, and then nothing has changed
        self.accumulate *= 2

    def _parts(self, inputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The same number of parts on every rank, as all meet in each; alone, none is empty."""
        if self.accumulate == 1:
            return [(inputs, targets)]
        count = self.accumulate if self.replica else max(1, min(self.accumulate, len(inputs)))
        return list(zip(inputs.tensor_split(count), targets.tensor_split(count), strict=True))

    def _weight(self, targets: Tensor, global_labels: Tensor | None) -> Tensor | int:
        """The total weight of the whole batch in its mean loss, left on the device."""
        if global_labels is None:
            return self.loss.total_weight(targets)
        return len(global_labels) if targets.ndim == 2 else self.loss.total_weight(global_labels)

    def _forward(
        self, inputs: Tensor, targets: Tensor, weight: Tensor | int
    ) -> tuple[Tensor, Tensor | float]:
        """The mean loss of a part, and its share of the whole batch's loss."""
        with autocast(self.precision, self.device):
            logits = self._logits(inputs)
            if len(targets) == 0:
                return logits.sum(), 0.0
            loss: Tensor = self.loss(logits, targets)
        return loss, self.loss.total_weight(targets) / weight

    def _logits(self, inputs: Tensor) -> Tensor:
        forward: Forward = self.replica.parallel if self.replica else self.model
        if self.compiled:
            forward = self.compiled.choose(len(inputs), self.accumulate)
        return self.replica.run(forward, inputs) if self.replica else forward(inputs)

    def _backward(self, loss: Tensor, share: Tensor | float) -> None:
        # torch averages the gradients over the ranks; multiplying by their number makes it a sum.
        self.scaler.scale(_weighed(loss, share * self.world.size)).backward()

    def _update(self) -> None:
        if self.clip_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        if self.guards_gradients:
            self._check_gradients()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _check_gradients(self) -> None:
        groups = self.optimizer.param_groups
        found = [one.grad for group in groups for one in group["params"] if one.grad is not None]
        # A sum for each is far faster than to look at each value; it may also be only too large.
        if all(math.isfinite(gradient.sum().item()) for gradient in found):
            return
        if not all(gradient.to_dense().isfinite().all() for gradient in found):
            raise NonFiniteGradients


def _weighed(loss: Tensor, factor: Tensor | float) -> Tensor:
    """Their product; a factor of one costs nothing."""
    return loss if isinstance(factor, float) and factor == 1 else loss * factor
