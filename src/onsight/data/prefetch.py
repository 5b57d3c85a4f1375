"""Sending the next batch to an accelerator while it computes the step of the current one."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


def can_prefetch(device: torch.device) -> bool:
    """Whether the device can copy while it computes, in a stream of its own."""
    return device.type in ("cuda", "xpu")


def prefetch(
    batches: Iterable[tuple[Tensor, ...]], device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """The batches in order on the device; each is sent before its predecessor is handed out."""
    backend: Any = getattr(torch, device.type)
    queue = backend.Stream(device)
    on_its_way = None
    for batch in batches:
        with backend.stream(queue):
            sent = tuple(_send(tensor, device) for tensor in batch)
            arrived = queue.record_event()
        if on_its_way:
            yield _receive(*on_its_way, backend.current_stream(device))
        on_its_way = sent, arrived
    if on_its_way:
        yield _receive(*on_its_way, backend.current_stream(device))


def _send(tensor: Tensor, device: torch.device) -> Tensor:
    """Begin a copy to the device; only from page-locked memory it does not block the host."""
    locked = tensor if tensor.is_pinned() else tensor.pin_memory()
    return locked.to(device, non_blocking=True)


def _receive(sent: tuple[Tensor, ...], arrived: Any, computing: Any) -> tuple[Tensor, ...]:
    """Make computing wait for the copies, and keep their memory until it has used them."""
    computing.wait_event(arrived)
    for tensor in sent:
        tensor.record_stream(computing)
    return sent
