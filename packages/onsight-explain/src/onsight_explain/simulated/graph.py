"""Graphs on the twin: work that is recorded instead of done, and done at each replay."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from onsight_explain.simulated.machine import Machine, poison_
from onsight_explain.simulated.nested import leaves

_aten = torch.ops.aten
_WRITES_UNSAID = {_aten.native_batch_norm.default: (3, 4)}  # arguments; its schema has no mark


@dataclass
class _Work:
    func: Any
    args: Any
    kwargs: dict[str, Any]
    made: list[Tensor]


class TwinGraph:
    """What torch.cuda.CUDAGraph is for CUDA.

    While it records, operations are computed to find their results' shapes; at the end memory is
    as it was before, and what is the graph's own holds poison until the first replay.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.reset()

    def reset(self) -> None:
        """Forget what was recorded."""
        self._works: list[_Work] = []
        self._saved: dict[Any, Any] = {}  # storages that were there before, and a copy of each
        self._own: dict[Any, Tensor] = {}
        self._read: dict[Any, Tensor] = {}
        self._written: dict[Any, Tensor] = {}

    def capture_begin(self, **options: Any) -> None:
        """Record what follows instead of doing it."""
        self._machine.recording = self
        self._device = self._machine.current_device
        self._generator_before = torch.default_generator.get_state()

    def capture_end(self) -> None:
        """Stop recording."""
        self._machine.recording = None
        torch.default_generator.set_state(self._generator_before)
        for storage, before in self._saved.items():
            storage.copy_(before)
        self._saved.clear()
        for tensor in self._own.values():
            poison_(tensor)

    def begins(self, func: Any, args: Any, written: list[Tensor]) -> None:
        """Keep what an operation is about to change."""
        also = [args[place] for place in _WRITES_UNSAID.get(func, ()) if place < len(args)]
        for tensor in [*written, *(one for one in also if one is not None)]:
            storage = tensor.untyped_storage()
            if storage not in self._own:
                self._written.setdefault(storage, tensor)
                if storage not in self._saved:
                    self._saved[storage] = storage.clone()

    def ended(self, func: Any, args: Any, kwargs: dict[str, Any], made: Any, runs: bool) -> None:
        """Take note of an operation. runs: whether it computes, rather than names memory."""
        given = [one for one in leaves((args, kwargs)) if isinstance(one, Tensor)]
        there = {one.untyped_storage() for one in given}
        fresh = [one for one in leaves(made) if isinstance(one, Tensor)]
        for one in fresh:
            if one.untyped_storage() not in there:
                self._own.setdefault(one.untyped_storage(), one)
        for one in given:
            if one.untyped_storage() not in self._own:
                self._read.setdefault(one.untyped_storage(), one)
        if runs:
            self._works.append(_Work(func, args, kwargs, fresh))

    def replay(self) -> None:
        """Do all of it, as one launch on the current stream."""
        machine = self._machine
        machine.record.launch("replay of a graph")
        read = [one for storage, one in self._read.items() if storage not in self._written]
        machine.work("a graph", self._device, read, list(self._written.values()))
        with _disable_current_modes(), torch.no_grad():
            for work in self._works:
                _do(work)


def _do(work: _Work) -> None:
    """Compute an operation again, its results where they were."""
    made = work.func(*work.args, **work.kwargs)
    again = [one for one in leaves(made) if isinstance(one, Tensor)]
    for now, then in zip(again, work.made, strict=True):
        if now.untyped_storage() is not then.untyped_storage():
            then.copy_(now)
