"""Sending the next batch to an accelerator while it computes the step of the current one."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from onsight_explain.devices import module_of


def prefetch(
    batches: Iterable[tuple[Tensor, ...]], device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """The batches in order on the device; each is sent before its predecessor is handed out."""
    backend = module_of(device)
    stream = backend.Stream(device)
    in_flight = None
    for batch in batches:
        with backend.stream(stream):
            sent = tuple(_send(tensor, device) for tensor in batch)
            arrived = stream.record_event()
        if in_flight:
            yield _receive(*in_flight, backend.current_stream(device))
        in_flight = sent, arrived
    if in_flight:
        yield _receive(*in_flight, backend.current_stream(device))


def _send(tensor: Tensor, device: torch.device) -> Tensor:
    """Begin a copy to the device; it blocks the host unless the memory is page-locked."""
    locked = tensor if tensor.is_pinned() else tensor.pin_memory()
    return locked.to(device, non_blocking=True)


def _receive(sent: tuple[Tensor, ...], arrived: Any, computing: Any) -> tuple[Tensor, ...]:
    """Make computing wait for the copies, and keep their memory until it has used them."""
    computing.wait_event(arrived)
    for tensor in sent:
        tensor.record_stream(computing)
    return sent
