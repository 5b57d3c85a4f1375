"""The graph of some training steps, with the memory that it reads from and writes to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onsight_explain.devices import module_of

# Does the work of one step: inputs, targets, labels of the whole batch, the groups' learning rates,
# a place for the loss.
RecordOne = Callable[[Tensor, Tensor, Tensor | None, list[Tensor], Tensor], None]


class StepBatch(NamedTuple):
    """What a step is made from; rates: the learning rate of each group of the optimizer.

    global_labels: those of the whole batch, if the others are this rank's share of it.
    """

    inputs: Tensor
    targets: Tensor
    global_labels: Tensor | None
    rates: list[float]


class Recording:
    """Records one step for each of the batches, which are only looked at for their shapes.

    way: how the steps are computed, for comparison; stream: where they are recorded. Raises
    RuntimeError if that cannot be recorded.
    """

    def __init__(
        self,
        like: list[StepBatch],
        groups: list[dict[str, Any]],
        device: torch.device,
        record_one: RecordOne,
        way: tuple[str, int],
        stream: Any,
    ) -> None:
        self.way = way
        self.batches = [
            StepBatch(
                one.inputs.clone(),
                one.targets.clone(),
                None if one.global_labels is None else one.global_labels.clone(),
                one.rates,
            )
            for one in like
        ]
        self.rates = torch.zeros(len(like), len(groups), device=device)
        self.losses = torch.zeros(len(like), device=device)
        module = module_of(device)
        self.graph = module.CUDAGraph()
        # Other threads may call what must not be called here: batches are decoded meanwhile.
        options = {"stream": stream, "capture_error_mode": "thread_local"}
        places = zip(self.batches, self.rates, self.losses, strict=True)
        with _capturable(groups), module.graph(self.graph, **options):
            for batch, rates, loss in places:
                record_one(*batch[:3], list(rates), loss)

    def replay(self, batches: list[StepBatch]) -> Tensor:
        """Make the steps of these batches; returns their losses (N,), valid until the next."""
        for places, given in zip(_columns(self.batches), _columns(batches), strict=True):
            torch._foreach_copy_(places, given)
        rates = torch.tensor([one.rates for one in batches]).pin_memory()
        self.rates.copy_(rates, non_blocking=True)
        self.graph.replay()
        return self.losses

    def reset(self) -> None:
        """Free the graph."""
        self.graph.reset()


def _columns(batches: list[StepBatch]) -> list[list[Tensor]]:
    """All inputs, all targets and, if there are any, all labels of the whole batches."""
    columns = zip(*(one[:3] for one in batches), strict=True)
    return [list(column) for column in columns if column[0] is not None]


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
