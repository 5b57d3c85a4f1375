"""The tensors of a training loop as rows: what each one is, how large, and on which device."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from onsight_explain.placement.walk import Leaf, Walk, moved, wrapped_prefix

PARAMETER = "parameter"
BUFFER = "buffer"
ATTRIBUTE = "plain tensor attribute"
LOSS = "loss weight"
STATE = "optimizer state"
METRIC = "metric"
COPY = "copy of the model"
BATCH = "batch"

# Torch combines single numbers on the CPU with any device; averages count their updates there.
_TAKES_SCALARS = {ATTRIBUTE, LOSS, COPY, BATCH}


@dataclass(frozen=True)
class Row:
    """A tensor; shape: None if it is not known yet, as in a lazy module."""

    name: str
    kind: str
    shape: tuple[int, ...] | None
    dtype: str
    device: str
    bytes: int

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return 0 if self.shape is None else math.prod(self.shape)


@dataclass(frozen=True)
class Found:
    """A row, and where it belongs.

    fix: the line that moves it there; holder: as in Leaf; home: its device, if not the model's;
    may_stray: whether it may also be on the CPU.
    """

    row: Row
    fix: str
    holder: str = ""
    home: str | None = None
    may_stray: bool = False

    def is_misplaced(self, home: str) -> bool:
        """Whether it is on the wrong device."""
        device, home = self.row.device, self.home or home
        is_same = device == home or home.startswith(f"{device}:")  # cuda matches any cuda:0
        return not (is_same or (self.may_stray and device == "cpu"))


class Table:
    """The rows found so far; a tensor has one row, however many names it has."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.seen: dict[int, Tensor] = {}  # keeps them alive, so that ids stay unique

    def add(
        self, kind: str, leaf: Leaf, home: str | None = None, may_stray: bool | None = None
    ) -> None:
        """Add a tensor, unless it is there already."""
        if id(leaf.tensor) in self.seen:
            return
        self.seen[id(leaf.tensor)] = leaf.tensor
        row = _row(leaf.path, kind, leaf.tensor)
        if may_stray is None:
            may_stray = row.kind in _TAKES_SCALARS and row.shape == ()
        self.found.append(Found(row, leaf.fix, leaf.holder, home, may_stray))

    def add_model(self, model: nn.Module) -> None:
        """Add the parameters, the buffers, and tensors in plain attributes of the network."""
        prefix, walk, line = wrapped_prefix(model), Walk(), moved("model")
        for kind, named in (
            (PARAMETER, model.named_parameters()),
            (BUFFER, model.named_buffers()),
        ):
            for name, tensor in named:
                self.add(kind, Leaf(name.removeprefix(prefix), tensor, line))
        for leaf in walk.attributes(model, "", "model"):
            self.add(ATTRIBUTE, leaf._replace(path=leaf.path.removeprefix(prefix)))

    def add_loss(self, loss: Any) -> None:
        """Add the tensors of a loss: of a module, an object, or the keywords of a partial."""
        for leaf in Walk().tensors(loss, "loss"):
            self.add(LOSS, leaf)

    def add_metrics(self, metrics: Any, model: nn.Module | None) -> None:
        """Add the tensors of metrics and moving averages, or else their `device` attribute."""
        copied = set() if model is None else _copied(model)
        for path, metric in _each(metrics, "metric"):
            leaves = Walk(public=True).tensors(metric, path)
            is_copy = any(
                (name, _shape(leaf.tensor)) in copied
                for leaf in leaves
                for name in _ends(leaf.path)
            )
            for leaf in leaves:
                self.add(COPY if is_copy else METRIC, leaf)
            device = getattr(metric, "device", None)
            if not leaves and isinstance(device, (str, torch.device)):
                row = Row(f"{path}.device", METRIC, None, "", str(device), 0)
                self.found.append(Found(row, moved(path)))

    def add_batch(self, batch: Any) -> None:
        """Add the tensors of a batch, in any nesting."""
        for leaf in Walk().tensors(batch, "batch"):
            self.add(BATCH, leaf._replace(fix=_batch_line(batch)))

    def home(self) -> str:
        """The device where everything should be: the model's, preferably an accelerator."""
        free = [found.row for found in self.found if found.home is None]
        for kind in (PARAMETER, BUFFER, None):
            rows = [row for row in free if kind in (None, row.kind)]
            if rows:
                return _main_device(rows)
        return "cpu"


def _row(name: str, kind: str, tensor: Tensor) -> Row:
    shape = _shape(tensor)
    size = 0 if shape is None else tensor.numel() * tensor.element_size()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Row(name, kind, shape, dtype, str(tensor.device), size)


def _main_device(rows: list[Row]) -> str:
    sizes: Counter[str] = Counter()
    for row in rows:
        sizes[row.device] += 1 + row.bytes
    accelerators = {device: size for device, size in sizes.items() if device != "cpu"}
    return max(accelerators, key=lambda device: accelerators[device], default="cpu")


def _shape(tensor: Tensor) -> tuple[int, ...] | None:
    try:
        return tuple(tensor.shape)
    except RuntimeError:  # a lazy module before its first batch, or a nested tensor
        return None


def _copied(model: nn.Module) -> set[tuple[str, tuple[int, ...] | None]]:
    """(name, shape) of every tensor that a copy of the model has."""
    prefix = wrapped_prefix(model)
    tensors = chain(model.named_parameters(), model.named_buffers())
    return {(name.removeprefix(prefix), _shape(tensor)) for name, tensor in tensors}


def _ends(path: str) -> Iterator[str]:
    """average.module.conv1.weight, module.conv1.weight, conv1.weight, weight."""
    while path:
        yield path
        path = path.partition(".")[2]


def _each(things: Any, name: str) -> Iterable[tuple[str, Any]]:
    """(path, object) of one object, or of each one in a container of several."""
    if isinstance(things, Mapping):
        return [(f'{name}s["{key}"]', thing) for key, thing in things.items()]
    if isinstance(things, (list, tuple)):
        return [(f"{name}s[{number}]", thing) for number, thing in enumerate(things)]
    return [(name, things)]


def _batch_line(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return "batch = {name: tensor.to(device) for name, tensor in batch.items()}"
    if isinstance(batch, (list, tuple)):
        if len(batch) == 2:
            return "images, labels = images.to(device), labels.to(device)"
        return "batch = [tensor.to(device) for tensor in batch]"
    return "batch = batch.to(device)"
