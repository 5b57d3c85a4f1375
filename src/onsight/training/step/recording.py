"""The graph of some training steps, with the memory that it reads from and writes to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onsight.accelerator import module_of

# Does the work of one step: inputs, targets, the groups' learning rates, a place for the loss.
RecordOne = Callable[[Tensor, Tensor, list[Tensor], Tensor], None]


class StepBatch(NamedTuple):
    """What a step is made from; rates: the learning rate of each group of the optimizer."""

    inputs: Tensor
    targets: Tensor
    global_labels: Tensor | None
    rates: list[float]


class Recording:
    """Records one step for each of the batches, which are only looked at for their shapes.

    way: how the steps are computed, for comparison. Raises RuntimeError if that cannot be recorded.
    """

    def __init__(
        self,
        like: list[StepBatch],
        groups: list[dict[str, Any]],
        device: torch.device,
        record_one: RecordOne,
        way: tuple[str, int],
    ) -> None:
        self.way = way
        self.inputs = [one.inputs.clone() for one in like]
        self.targets = [one.targets.clone() for one in like]
        self.rates = torch.zeros(len(like), len(groups), device=device)
        self.losses = torch.zeros(len(like), device=device)
        module = module_of(device)
        self.graph = module.CUDAGraph()
        # Other threads may call what must not be called here: batches are decoded meanwhile.
        options = {"stream": module.Stream(device), "capture_error_mode": "thread_local"}
        places = zip(self.inputs, self.targets, self.rates, self.losses, strict=True)
        with _capturable(groups), module.graph(self.graph, **options):
            for inputs, targets, rates, loss in places:
                record_one(inputs, targets, list(rates), loss)

    def replay(self, batches: list[StepBatch]) -> Tensor:
        """Make the steps of these batches; returns their losses (N,), valid until the next."""
        torch._foreach_copy_(self.inputs, [one.inputs for one in batches])
        torch._foreach_copy_(self.targets, [one.targets for one in batches])
        rates = torch.tensor([one.rates for one in batches]).pin_memory()
        self.rates.copy_(rates, non_blocking=True)
        self.graph.replay()
        return self.losses


@contextmanager
def _capturable(groups: list[dict[str, Any]]) -> Iterator[None]:
    """Let optimizers be recorded that ask for it; fused ones compute the same either way."""
    asking = [group for group in groups if "capturable" in group]
    former = [group["capturable"] for group in asking]
    for group in asking:
        group["capturable"] = True
    try:
        yield
    finally:
        for group, value in zip(asking, former, strict=True):
            group["capturable"] = value
