"""One optimization step: forward, loss, backward, update. All training goes through it."""

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from onsight.models.classifier import autocast
from onsight.models.unsuitable import unsuitable_error
from onsight.randomness import seed_generators
from onsight.ranks.ddp import Replica
from onsight.ranks.world import World
from onsight.step.deferred_losses import DeferredLosses, NonFiniteGradients
from onsight.step.losses import Loss
from onsight_explain.devices import is_out_of_memory, release_cached_memory

Forward = Callable[[Tensor], Tensor]  # inputs (B, C, H, W) to logits (B, K)


class Compiled:
    """The compiled forward pass of full batches, or of their parts; other sizes are not compiled.

    Args:
        net: Already wrapped in DistributedDataParallel, as torch asks, if several ranks train it.
        images: Of a full batch on this rank.
        replays: Whether whole batches are replayed as CUDA graphs, which takes the host little
            time.
    """

    def __init__(self, net: nn.Module, images: int, replays: bool) -> None:
        self.net = net
        self.images = images
        self.whole: Forward = torch.compile(
            net, dynamic=False, mode="reduce-overhead" if replays else "default"
        )
        # Without graphs: gradients may lie in a graph's memory, and the next part would overwrite
        # them before they are added.
        self.part: Forward = torch.compile(net, dynamic=False, mode="default")

    def choose(self, images: int, parts: int) -> Forward:
        """Return the forward pass for a number of images, in a batch split into parts."""
        if images != math.ceil(self.images / parts):
            return self.net
        return self.whole if parts == 1 else self.part


class StepListener:
    """Is told when steps cannot be computed as planned; does nothing by default."""

    def out_of_memory(self, parts: int) -> None:
        """Batches are split into this many parts from now on. May raise to prevent it."""

    def graph_refused(self, reason: str) -> None:
        """Steps cannot be replayed as a CUDA graph."""


class Step:
    """Updates the weights from a batch of inputs (B, C, H, W) and targets.

    Args:
        precision: "fp32", "bf16" or "fp16", of the forward pass.
        clip_norm: The largest norm of the gradients; 0 does not limit it.
        accumulate: Into how many parts a batch is split; the update is that of the whole batch.
        world: The ranks that share each batch.
        replica: This rank's copy of the model, if there are several ranks.
        compiled: The compiled forward pass, if any.
        listener: Is told when memory runs out or a graph cannot be recorded.
    """

    steps_per_replay = 1
    refused = ""  # why steps are not replayed as a CUDA graph although they were meant to be

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
        self.random_key: tuple[int, ...] | None = None  # which torch's generators were seeded with
        self.losses = DeferredLosses(device, self.world)
        self.listener = listener or StepListener()
        is_scaled = precision == "fp16"  # without a scaled loss, fp16 gradients underflow
        self.scaler = torch.amp.GradScaler(device.type, enabled=is_scaled)
        # On an accelerator this would wait for the device; a scaler skips such updates itself.
        self.guards_gradients = device.type == "cpu" and not is_scaled

    def __call__(
        self, inputs: Tensor, targets: Tensor, global_labels: Tensor | None = None
    ) -> list[float]:
        """Update the model and return the mean losses that have become known.

        On a CPU that is this batch's, on an accelerator an earlier one's; `flush` returns the rest.
        When memory runs out before the update, batches are split into twice as many parts from
        then on. In the update it is an error, as some weights may have changed.

        Args:
            inputs: Of this rank (B, C, H, W).
            targets: Labels (B,) or class probabilities (B, K).
            global_labels: Of the whole batch, if several ranks share it.

        Raises:
            ModelError: If the loss has no gradient.
            NonFiniteStepError: If a loss or, on a CPU, a gradient is not finite.
        """
        self._make_gradients(inputs, targets, global_labels)
        known = self.losses.ready()
        self._update()
        return known

    def set_full_batch(self, images: int) -> None:
        """Set how many images a full batch has, for which steps are compiled or recorded."""
        if self.compiled:
            self.compiled.images = images

    def flush(self) -> list[float]:
        """Wait for the device and return all other losses. Raises NonFiniteStepError."""
        return self.losses.flush()

    @property
    def guards_weights(self) -> bool:
        """Whether a step with a loss that is not finite leaves the weights as they are."""
        return self.losses.lag == 0

    def _make_gradients(
        self, inputs: Tensor, targets: Tensor, global_labels: Tensor | None
    ) -> None:
        """Compute the gradients, in more and more parts as long as memory runs out."""
        while True:
            try:
                return self._compute_gradients(inputs, targets, global_labels)
            except RuntimeError as error:
                # A rank cannot do so alone: all must have the same number of parts.
                may_halve = self.world.size == 1 and 2 * self.accumulate <= len(inputs)
                if not is_out_of_memory(error) or not may_halve:
                    raise
            self._halve()  # out here, where the error no longer holds the step's memory

    def _compute_gradients(
        self, inputs: Tensor, targets: Tensor, global_labels: Tensor | None
    ) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        *first, last = self._parts(inputs, targets)
        total_weight = self._total_weight(targets, global_labels)
        earlier: Tensor | None = None
        for part in first:
            with self.replica.no_sync() if self.replica else nullcontext():
                loss, share = self._forward(*part, total_weight)
                value = _multiply(loss.detach(), share)
                earlier = value if earlier is None else earlier + value
                self._backward(loss, share)
        loss, share = self._forward(*last, total_weight)
        value = _multiply(loss.detach(), share)
        self._record_loss(value if earlier is None else earlier + value)
        self._backward(loss, share)

    def _record_loss(self, loss: Tensor) -> None:
        self.losses.push(loss)

    def _halve(self) -> None:
        self.losses.drop_unfinished()
        self.optimizer.zero_grad(set_to_none=True)
        release_cached_memory(self.device)
        self.listener.out_of_memory(2 * self.accumulate)  # may raise: nothing has changed by then
        self.accumulate *= 2
        if self.random_key:  # the failed attempt may have drawn random numbers
            seed_generators(self.device, *self.random_key)

    def _parts(self, inputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Split a batch, on all ranks into equally many parts, of which some may be empty."""
        if self.accumulate == 1:
            return [(inputs, targets)]
        count = self.accumulate if self.replica else max(1, min(self.accumulate, len(inputs)))
        return list(zip(inputs.tensor_split(count), targets.tensor_split(count), strict=True))

    def _total_weight(self, targets: Tensor, global_labels: Tensor | None) -> Tensor | int:
        """Return what the sum of the whole batch's losses is divided by, on the device."""
        if global_labels is None:
            return self.loss.total_weight(targets)
        return len(global_labels) if targets.ndim == 2 else self.loss.total_weight(global_labels)

    def _forward(
        self, inputs: Tensor, targets: Tensor, total_weight: Tensor | int
    ) -> tuple[Tensor, Tensor | float]:
        """Return the mean loss of a part, and its share of the whole batch's weight."""
        with autocast(self.precision, self.device):
            logits = self._logits(inputs)
            if len(targets) == 0:
                return logits.sum(), 0.0
            loss: Tensor = self.loss(logits, targets)
        return loss, self.loss.total_weight(targets) / total_weight

    def _logits(self, inputs: Tensor) -> Tensor:
        forward: Forward = self.replica.parallel if self.replica else self.model
        if self.compiled:
            forward = self.compiled.choose(len(inputs), self.accumulate)
        return self.replica.run(forward, inputs) if self.replica else forward(inputs)

    def _backward(self, loss: Tensor, share: Tensor | float) -> None:
        if not loss.requires_grad:
            reason = "no trainable parameter has a gradient, as if its output were detached"
            raise unsuitable_error(self.model, "training", reason)
        # torch averages gradients over the ranks; multiplied by their number they are summed.
        self.scaler.scale(_multiply(loss, share * self.world.size)).backward()

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
        parameters = [parameter for group in groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # Sums are far faster than a look at every value, but finite values may overflow in them.
        if all(math.isfinite(gradient.sum().item()) for gradient in gradients):
            return
        if not all(gradient.to_dense().isfinite().all() for gradient in gradients):
            raise NonFiniteGradients


def _multiply(loss: Tensor, factor: Tensor | float) -> Tensor:
    """Multiply a loss, without the cost of an operation if the factor is one."""
    return loss if isinstance(factor, float) and factor == 1 else loss * factor
