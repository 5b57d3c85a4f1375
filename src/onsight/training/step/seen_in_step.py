"""What a step does that a graph of it could not repeat: random numbers, waits of the host."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from onsight_explain.devices import module_of

_OF_A_WAIT = "called a synchronizing"
_OF_THE_MODE = "Synchronization debug mode"


@contextmanager
def random_numbers(device: torch.device) -> Iterator[dict[str, bool]]:
    """Whether the block draws random numbers, on the device and on the host."""
    of_device = module_of(device).default_generators[device.index or 0]
    of_host = torch.default_generator
    before, before_on_host, before_in_python = (
        of_device.get_state(),
        of_host.get_state(),
        random.getstate(),
    )
    drawn: dict[str, bool] = {}
    yield drawn
    drawn["device"] = not before.equal(of_device.get_state())
    drawn["host"] = random.getstate() != before_in_python or (
        of_host is not of_device and not before_on_host.equal(of_host.get_state())
    )


@contextmanager
def waits(device: torch.device) -> Iterator[list[str]]:
    """The places, FILE:LINE, where the block makes the host wait for the device, as torch warns."""
    module = module_of(device)
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            module.set_sync_debug_mode("default")
    for one in caught:
        if str(one.message).startswith(_OF_A_WAIT):
            found.append(f"{one.filename}:{one.lineno}")
        elif not str(one.message).startswith(_OF_THE_MODE):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
