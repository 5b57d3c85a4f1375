"""The changes made from outside, in the process that runs the script."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from onsight.explain.script.augmenting import leave_fixed, move_to_batches
from onsight.explain.script.memory import KeptFiles, KeptItems, base_dataset
from onsight.explain.script.trace import Changes
from onsight.explain.tracing.calls import RootCalls, kind_of
from onsight.explain.tracing.patches import Patches

_FUSABLE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


class Applied:
    """Changes in force; is_evaluation: says whether a forward of the network is no training.

    notes: what of the changes could not be made, or not wholly.
    """

    def __init__(self, changes: Changes, is_skipped: Callable[[], bool]) -> None:
        self.changes, self.is_skipped = changes, is_skipped
        self.is_evaluation: Callable[[nn.Module], bool] = lambda module: not module.training
        self.notes: list[str] = []
        self._converted: set[int] = set()
        self._after: dict[int, Callable[[Any], Any]] = {}  # by loader
        self._kept: dict[int, KeptItems] = {}  # by data set, which two loaders may share
        self._files = KeptFiles()

    def install(self, patches: Patches) -> None:
        """From now on."""
        changes = self.changes
        if changes.threads:
            torch.set_num_threads(changes.threads)
            patches.put(torch, "set_num_threads", lambda count: None)
        if changes.channels_last or changes.bf16 or changes.no_grad:
            RootCalls(self._around, self.is_skipped).install(patches)
        if changes.fused:
            for kind in _FUSABLE:
                patches.put(kind, "__init__", _fused(kind.__init__))
        if changes.cache == "files":
            patches.put(Image, "open", self._files.open)
        if changes.pin_memory:
            patches.put(Tensor, "to", _not_blocking(Tensor.to))
        patches.put(DataLoader, "__init__", self._make_loader(DataLoader.__init__))
        patches.put(DataLoader, "__iter__", self._iterate(DataLoader.__iter__))

    def _make_loader(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def make(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(loader, *args, **kwargs)
            bound.apply_defaults()
            asked = bound.arguments
            self._change_loader(loader, asked)
            given = {name: asked[name] for name in asked if name != "self"}
            original(loader, **given)

        return make

    def _change_loader(self, loader: DataLoader[Any], asked: dict[str, Any]) -> None:
        changes = self.changes
        if changes.workers is not None:
            _set_workers(asked, changes.workers)
        if changes.persistent_workers and asked["num_workers"]:
            asked["persistent_workers"] = True
        if changes.pin_memory:
            asked["pin_memory"] = True
        is_drawn = asked["shuffle"] or asked["sampler"] is not None  # and so for training
        if changes.batch_factor and is_drawn and asked["batch_size"]:
            most = max(1, len(asked["dataset"]))
            asked["batch_size"] = min(most, asked["batch_size"] * changes.batch_factor)
        if changes.augment_batches:
            after = move_to_batches(base_dataset(asked["dataset"]))
            if after:
                self._after[id(loader)] = after
            elif is_drawn:
                raise ValueError("the data set has no random transforms that could be moved")
        if changes.cache:
            self._keep(asked)

    def _keep(self, asked: dict[str, Any]) -> None:
        """In one process, where what is kept can be found again."""
        dataset = asked["dataset"]
        if not hasattr(dataset, "__getitem__"):
            self.notes.append("a data set without numbered items cannot be kept")
            return
        if self.changes.cache == "files":
            self._files.fill(dataset)
            return
        _set_workers(asked, 0)
        if id(dataset) not in self._kept:
            is_part = self.changes.cache == "fixed"
            finish = leave_fixed(base_dataset(dataset)) if is_part else None
            if is_part and finish is None:
                raise ValueError("the data set has no list of transforms that could be divided")
            self._kept[id(dataset)] = KeptItems(dataset, finish)
        kept = asked["dataset"] = self._kept[id(dataset)]
        if not kept.is_whole:
            self.notes.append(f"kept {len(kept):,} of {len(dataset):,} items, drawn by chance")
            if asked["sampler"] is not None or asked["batch_sampler"] is not None:
                asked |= {"sampler": None, "batch_sampler": None, "shuffle": True}

    def _iterate(self, original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            after = self._after.get(id(loader))
            for batch in original(loader):
                yield _on_pictures(after, batch) if after else batch

        return iterate if self.changes.augment_batches else original

    def _around(self, module: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
        if kind_of(module) != "network":
            return proceed(*args)
        changes = self.changes
        device = next(module.parameters()).device
        if changes.channels_last:
            self._convert(module)
            args = tree_map(_channels_last, args)
        kept = torch.is_grad_enabled() and not (changes.no_grad and self.is_evaluation(module))
        with torch.set_grad_enabled(kept):
            if not changes.bf16:
                return proceed(*args)
            with torch.autocast(device.type, torch.bfloat16):
                out = proceed(*args)
            return tree_map(_full, out)

    def _convert(self, module: nn.Module) -> None:
        if id(module) not in self._converted:
            self._converted.add(id(module))
            module.to(memory_format=torch.channels_last)


def _set_workers(asked: dict[str, Any], workers: int) -> None:
    asked["num_workers"] = workers
    if workers == 0:
        asked |= {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}
        asked["multiprocessing_context"] = None


def _fused(original: Callable[..., None]) -> Callable[..., None]:
    def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **(kwargs | {"fused": True, "foreach": False}))

    return make


def _not_blocking(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return original(tensor, *args, **(kwargs | {"non_blocking": True}))

    return to


def _on_pictures(after: Callable[[Any], Any], batch: Any) -> Any:
    """The first part of a batch, which is its pictures, transformed."""
    if isinstance(batch, list | tuple):
        return [after(batch[0]), *batch[1:]]
    return after(batch)


def _channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value


def _full(value: Any) -> Any:
    is_half = isinstance(value, Tensor) and value.dtype is torch.bfloat16
    return value.float() if is_half else value
