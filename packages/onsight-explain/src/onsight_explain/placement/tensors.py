"""Find every tensor of a training loop: what it is, on which device, and how to move it."""

import functools
import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# Kinds of tensors.
PARAMETER = "parameter"
BUFFER = "buffer"
ATTRIBUTE = "plain tensor attribute"
LOSS = "loss weight"
STATE = "optimizer state"
METRIC = "metric"
COPY = "copy of the model"
BATCH = "batch"

# Torch combines single numbers on the CPU with any device; averages count their updates there.
_ACCEPTS_CPU_SCALARS = {ATTRIBUTE, LOSS, COPY, BATCH}

_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # of every module, such as its dict of buffers
_OPAQUE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_MAX_DEPTH = 2  # nested objects: enough for an average of a model, but not for a whole trainer
_WRAPPERS = {"module", "_orig_mod"}  # attributes of data parallel and compiled networks


@dataclass(frozen=True)
class TensorRow:
    """One tensor in the table."""

    name: str
    kind: str  # one of the constants above
    shape: tuple[int, ...] | None  # None if it is not known yet, as in a lazy module
    dtype: str
    device: str
    bytes: int

    @property
    def numbers(self) -> int:
        """The number of elements."""
        return 0 if self.shape is None else math.prod(self.shape)


@dataclass(frozen=True)
class PlacedTensor:
    """A row, and the device where its tensor belongs."""

    row: TensorRow
    fix: str  # the line of code that moves the tensor to its device
    holder: str = ""  # as in Leaf
    home: str | None = None  # required device, if different from the model's
    may_be_on_cpu: bool = False  # besides its home

    def is_misplaced(self, home: str) -> bool:
        """Return whether the tensor is on the wrong device; home: the model's device."""
        device, home = self.row.device, self.home or home
        is_same = device == home or home.startswith(f"{device}:")  # cuda matches any cuda:0
        return not (is_same or (self.may_be_on_cpu and device == "cpu"))


class Leaf(NamedTuple):
    """A tensor inside an object."""

    path: str  # its name in code
    tensor: Tensor
    fix: str  # the line of code that moves the tensor
    holder: str = ""  # class with the tensor as a plain attribute, which `.to()` does not move


class TensorTable:
    """The tensors of a training loop. A tensor has one row, however many names it has."""

    def __init__(self) -> None:
        self.entries: list[PlacedTensor] = []
        self._added: dict[int, Tensor] = {}  # keeps them alive, so that ids stay unique

    def add(
        self, kind: str, leaf: Leaf, home: str | None = None, may_be_on_cpu: bool | None = None
    ) -> None:
        """Add a tensor, unless it has a row already."""
        if id(leaf.tensor) in self._added:
            return
        self._added[id(leaf.tensor)] = leaf.tensor
        row = _make_row(leaf.path, kind, leaf.tensor)
        if may_be_on_cpu is None:
            may_be_on_cpu = row.kind in _ACCEPTS_CPU_SCALARS and row.shape == ()
        self.entries.append(PlacedTensor(row, leaf.fix, leaf.holder, home, may_be_on_cpu))

    def add_model(self, model: nn.Module) -> None:
        """Add the parameters, the buffers, and tensors in plain attributes of the network."""
        prefix, finder, fix = wrapper_prefix(model), TensorFinder(), move_line("model")
        for kind, named in (
            (PARAMETER, model.named_parameters()),
            (BUFFER, model.named_buffers()),
        ):
            for name, tensor in named:
                self.add(kind, Leaf(name.removeprefix(prefix), tensor, fix))
        for leaf in finder.find_attributes(model, "", "model"):
            self.add(ATTRIBUTE, leaf._replace(path=leaf.path.removeprefix(prefix)))

    def add_loss(self, loss: Any) -> None:
        """Add the tensors of a loss: of a module, an object, or the keywords of a partial."""
        for leaf in TensorFinder().find(loss, "loss"):
            self.add(LOSS, leaf)

    def add_metrics(self, metrics: Any, model: nn.Module | None) -> None:
        """Add the tensors of metrics and moving averages, or else their `device` attribute."""
        model_tensors = set() if model is None else _names_and_shapes(model)
        for path, metric in _each(metrics, "metric"):
            leaves = TensorFinder(public_only=True).find(metric, path)
            is_copy = any(
                (name, _shape(leaf.tensor)) in model_tensors
                for leaf in leaves
                for name in _suffixes(leaf.path)
            )
            for leaf in leaves:
                self.add(COPY if is_copy else METRIC, leaf)
            device = getattr(metric, "device", None)
            if not leaves and isinstance(device, (str, torch.device)):
                row = TensorRow(f"{path}.device", METRIC, None, "", str(device), 0)
                self.entries.append(PlacedTensor(row, move_line(path)))

    def add_batch(self, batch: Any) -> None:
        """Add the tensors of a batch, in any nesting."""
        for leaf in TensorFinder().find(batch, "batch"):
            self.add(BATCH, leaf._replace(fix=_move_batch_line(batch)))

    def home(self) -> str:
        """Return the device where everything should be: the model's, preferably an accelerator."""
        free = [entry.row for entry in self.entries if entry.home is None]
        for kind in (PARAMETER, BUFFER, None):
            rows = [row for row in free if kind in (None, row.kind)]
            if rows:
                return _main_device(rows)
        return "cpu"


class TensorFinder:
    """Finds the tensors inside objects. An object is entered only once."""

    def __init__(self, public_only: bool = False) -> None:
        """public_only: ignore attributes whose names begin with an underscore."""
        self.public_only = public_only
        self._entered: dict[int, Any] = {}  # keeps them alive, so that ids stay unique

    def find(self, thing: Any, path: str) -> list[Leaf]:
        """Return every tensor in an object; path: the object's name in code."""
        return list(self._find(thing, path, "", _MAX_DEPTH))

    def find_attributes(self, module: nn.Module, path: str, mover: str) -> Iterator[Leaf]:
        """Yield tensors in plain attributes of a module and its submodules.

        mover: the name of the object whose `.to()` moves the module.
        """
        submodules = dict(module.named_modules())
        self._entered |= {id(submodule): submodule for submodule in submodules.values()}
        for place, submodule in submodules.items():
            for name, value in vars(submodule).items():
                is_internal = name in _MODULE_ATTRIBUTES or _is_computed(submodule, name)
                if is_internal or self._is_skipped(name):
                    continue
                where = _join_path(path, place, name)
                if name in getattr(submodule, "_defaults", ()):  # torchmetrics moves its states
                    yield from self._find(value, where, mover, 0)
                else:
                    yield from self._find_in_attribute(value, where, name, submodule)

    def _find(self, thing: Any, path: str, mover: str, depth: int) -> Iterator[Leaf]:
        if isinstance(thing, Tensor):
            yield Leaf(path, thing, move_line(mover or path))
            return
        if id(thing) in self._entered:
            return
        self._entered[id(thing)] = thing
        if isinstance(thing, nn.Module):
            yield from self._find_in_module(thing, path, mover or path)
        elif isinstance(thing, functools.partial):
            yield from self._find_in_partial(thing, path, depth)
        elif items := _items(thing):
            for key, value in items:
                yield from self._find(value, f"{path}[{key}]", mover, depth)
        elif depth and hasattr(thing, "__dict__") and not isinstance(thing, _OPAQUE):
            mover = mover or (path if callable(getattr(thing, "to", None)) else "")
            for name, value in vars(thing).items():
                if not self._is_skipped(name):
                    yield from self._find(value, f"{path}.{name}", mover, depth - 1)

    def _find_in_module(self, module: nn.Module, path: str, mover: str) -> Iterator[Leaf]:
        """Yield the registered tensors of a module, then those in plain attributes."""
        for name, tensor in chain(module.named_parameters(), module.named_buffers()):
            yield Leaf(_join_path(path, name), tensor, move_line(mover))
        yield from self.find_attributes(module, path, mover)

    def _find_in_partial(
        self, thing: functools.partial[Any], path: str, depth: int
    ) -> Iterator[Leaf]:
        yield from self._find(thing.func, f"{path}.func", "", depth)
        yield from self._find(thing.args, f"{path}.args", "", depth)
        for key, value in thing.keywords.items():
            where = f'{path}.keywords["{key}"]'
            fix = f"{path} = functools.partial({path}, {key}={where}.to(device))"
            for leaf in self._find(value, where, "", depth):
                yield leaf._replace(fix=fix) if leaf.tensor is value else leaf

    def _find_in_attribute(
        self, value: Any, where: str, code: str, owner: nn.Module
    ) -> Iterator[Leaf]:
        """Yield tensors in a plain attribute of a module; code: its name in the class's code.

        `.to()` moves none of them, so the fix is to register them in the class.
        """
        holder, name = type(owner).__name__, code.partition("[")[0]
        container = "Dict" if isinstance(vars(owner)[name], Mapping) else "List"
        if isinstance(value, nn.Parameter) and code != name:
            yield Leaf(where, value, f"self.{name} = nn.Parameter{container}({name})", holder)
        elif isinstance(value, Tensor):
            is_cache = code.endswith(f'["{value.device}"]')  # an entry per device, as in LeViT
            if value.grad_fn is None and not is_cache:  # nor is it the result of a forward pass
                buffer = re.sub(r"\W+", "_", code).strip("_")
                yield Leaf(where, value, f'self.register_buffer("{buffer}", {code})', holder)
        elif id(value) in self._entered:
            return
        elif isinstance(value, nn.Module):
            registered = f"nn.Module{container}({name})" if code != name else name
            for leaf in self._find_in_module(value, where, ""):
                yield leaf._replace(fix=f"self.{name} = {registered}", holder=holder)
        elif items := _items(value):
            self._entered[id(value)] = value
            for key, item in items:
                yield from self._find_in_attribute(item, f"{where}[{key}]", f"{code}[{key}]", owner)

    def _is_skipped(self, name: str) -> bool:
        return self.public_only and name.startswith("_")


def move_line(path: str) -> str:
    """Return the line of code that moves the object at `path`."""
    return f"{path} = {path}.to(device)"


def wrapper_prefix(module: nn.Module) -> str:
    """Return the prefix that wrappers such as DistributedDataParallel add to a network's names."""
    children = dict(module.named_children())
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if own or len(children) != 1 or not children.keys() <= _WRAPPERS:
        return ""
    ((name, child),) = children.items()
    return f"{name}.{wrapper_prefix(child)}"


def _make_row(name: str, kind: str, tensor: Tensor) -> TensorRow:
    shape = _shape(tensor)
    size = 0 if shape is None else tensor.numel() * tensor.element_size()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorRow(name, kind, shape, dtype, str(tensor.device), size)


def _shape(tensor: Tensor) -> tuple[int, ...] | None:
    try:
        return tuple(tensor.shape)
    except RuntimeError:  # a lazy module before its first batch, or a nested tensor
        return None


def _main_device(rows: list[TensorRow]) -> str:
    sizes: Counter[str] = Counter()
    for row in rows:
        sizes[row.device] += 1 + row.bytes
    accelerators = {device: size for device, size in sizes.items() if device != "cpu"}
    return max(accelerators, key=lambda device: accelerators[device], default="cpu")


def _names_and_shapes(model: nn.Module) -> set[tuple[str, tuple[int, ...] | None]]:
    prefix = wrapper_prefix(model)
    tensors = chain(model.named_parameters(), model.named_buffers())
    return {(name.removeprefix(prefix), _shape(tensor)) for name, tensor in tensors}


def _suffixes(path: str) -> Iterator[str]:
    """Yield average.module.conv1.weight, module.conv1.weight, conv1.weight, weight."""
    while path:
        yield path
        path = path.partition(".")[2]


def _each(things: Any, name: str) -> Iterable[tuple[str, Any]]:
    """Return (path, object) of one object, or of each one in a container of several."""
    if isinstance(things, Mapping):
        return [(f'{name}s["{key}"]', thing) for key, thing in things.items()]
    if isinstance(things, (list, tuple)):
        return [(f"{name}s[{index}]", thing) for index, thing in enumerate(things)]
    return [(name, things)]


def _items(thing: Any) -> list[tuple[str, Any]]:
    """Return (key as in code, value) of each item of a container; nothing for other objects."""
    if isinstance(thing, Mapping):
        pairs: Iterable[tuple[Any, Any]] = thing.items()
    elif isinstance(thing, (list, tuple, set, frozenset, deque)):
        pairs = enumerate(thing)
    else:
        return []
    return [(f'"{key}"' if isinstance(key, str) else repr(key), value) for key, value in pairs]


def _is_computed(module: nn.Module, name: str) -> bool:
    """Return whether each forward pass computes the attribute, as weight norm and pruning do."""
    registered = vars(module).get("_parameters", {})
    return f"{name}_orig" in registered or f"{name}_g" in registered


def _join_path(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _move_batch_line(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return "batch = {name: tensor.to(device) for name, tensor in batch.items()}"
    if isinstance(batch, (list, tuple)):
        if len(batch) == 2:
            return "images, labels = images.to(device), labels.to(device)"
        return "batch = [tensor.to(device) for tensor in batch]"
    return "batch = batch.to(device)"
