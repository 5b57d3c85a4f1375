"""The tensors that an object contains, each with its path and the line of code that moves it."""

import functools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn

_TORCHS_OWN = frozenset(vars(nn.Module()))  # what every module has, such as its dict of buffers
_OPAQUE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_DEEPEST = 2  # nested objects: enough for an average of a model, but not for a whole trainer
_WRAPPERS = {"module", "_orig_mod"}  # of data parallel and compiled networks


class Leaf(NamedTuple):
    """A tensor; holder: the class that has it as a plain attribute, which `.to()` does not move."""

    path: str
    tensor: Tensor
    fix: str
    holder: str = ""


class Walk:
    """Finds the tensors in objects; an object is entered only once.

    public: whether to ignore attributes whose names begin with _.
    """

    def __init__(self, public: bool = False) -> None:
        self.public = public
        self.entered: dict[int, Any] = {}  # keeps them alive, so that ids stay unique

    def tensors(self, thing: Any, path: str, mover: str = "", depth: int = _DEEPEST) -> list[Leaf]:
        """Every tensor in an object; path: its name in code; mover: the owner with a `.to()`."""
        return list(self._leaves(thing, path, mover, depth))

    def module(self, module: nn.Module, path: str, mover: str) -> Iterator[Leaf]:
        """The registered tensors of a module, then those in plain attributes."""
        for name, tensor in chain(module.named_parameters(), module.named_buffers()):
            yield Leaf(_dotted(path, name), tensor, moved(mover))
        yield from self.attributes(module, path, mover)

    def attributes(self, module: nn.Module, path: str, mover: str) -> Iterator[Leaf]:
        """Tensors in plain attributes of a module or its submodules."""
        parts = dict(module.named_modules())
        self.entered |= {id(part): part for part in parts.values()}
        for place, part in parts.items():
            for name, value in vars(part).items():
                if name in _TORCHS_OWN or _is_computed(part, name) or self._is_private(name):
                    continue
                where = _dotted(path, place, name)
                if name in getattr(part, "_defaults", ()):  # torchmetrics moves its states itself
                    yield from self._leaves(value, where, mover, 0)
                else:
                    yield from self._kept(value, where, name, part)

    def _leaves(self, thing: Any, path: str, mover: str, depth: int) -> Iterator[Leaf]:
        if isinstance(thing, Tensor):
            yield Leaf(path, thing, moved(mover or path))
            return
        if id(thing) in self.entered:
            return
        self.entered[id(thing)] = thing
        if isinstance(thing, nn.Module):
            yield from self.module(thing, path, mover or path)
        elif isinstance(thing, functools.partial):
            yield from self._partial(thing, path, depth)
        elif items := _items(thing):
            for key, value in items:
                yield from self._leaves(value, f"{path}[{key}]", mover, depth)
        elif depth and hasattr(thing, "__dict__") and not isinstance(thing, _OPAQUE):
            mover = mover or (path if callable(getattr(thing, "to", None)) else "")
            for name, value in vars(thing).items():
                if not self._is_private(name):
                    yield from self._leaves(value, f"{path}.{name}", mover, depth - 1)

    def _partial(self, thing: functools.partial[Any], path: str, depth: int) -> Iterator[Leaf]:
        yield from self._leaves(thing.func, f"{path}.func", "", depth)
        yield from self._leaves(thing.args, f"{path}.args", "", depth)
        for key, value in thing.keywords.items():
            where = f'{path}.keywords["{key}"]'
            bound = f"{path} = functools.partial({path}, {key}={where}.to(device))"
            for leaf in self._leaves(value, where, "", depth):
                yield leaf._replace(fix=bound) if leaf.tensor is value else leaf

    def _kept(self, value: Any, where: str, words: str, part: nn.Module) -> Iterator[Leaf]:
        """Tensors in a plain attribute; words: the attribute's name in the class's own code."""
        holder, name = type(part).__name__, words.partition("[")[0]
        kind = "Dict" if isinstance(vars(part)[name], Mapping) else "List"
        if isinstance(value, nn.Parameter) and words != name:
            yield Leaf(where, value, f"self.{name} = nn.Parameter{kind}({name})", holder)
        elif isinstance(value, Tensor):
            is_cache = words.endswith(f'["{value.device}"]')  # one entry per device, as in LeViT
            if value.grad_fn is None and not is_cache:  # nor is it the result of a forward pass
                buffer = re.sub(r"\W+", "_", words).strip("_")
                yield Leaf(where, value, f'self.register_buffer("{buffer}", {words})', holder)
        elif id(value) in self.entered:
            return
        elif isinstance(value, nn.Module):
            whole = f"nn.Module{kind}({name})" if words != name else name
            for leaf in self.module(value, where, ""):
                yield leaf._replace(fix=f"self.{name} = {whole}", holder=holder)
        elif items := _items(value):
            self.entered[id(value)] = value
            for key, item in items:
                yield from self._kept(item, f"{where}[{key}]", f"{words}[{key}]", part)

    def _is_private(self, name: str) -> bool:
        return self.public and name.startswith("_")


def moved(path: str) -> str:
    """The line that moves what is named path."""
    return f"{path} = {path}.to(device)"


def wrapped_prefix(module: nn.Module) -> str:
    """The prefix that wrappers such as DistributedDataParallel add to a network's names."""
    children = dict(module.named_children())
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if own or len(children) != 1 or not children.keys() <= _WRAPPERS:
        return ""
    ((name, child),) = children.items()
    return f"{name}.{wrapped_prefix(child)}"


def _items(thing: Any) -> list[tuple[str, Any]]:
    """(key as in code, value) of each item of a container; nothing for other objects."""
    if isinstance(thing, Mapping):
        pairs: Iterable[tuple[Any, Any]] = thing.items()
    elif isinstance(thing, (list, tuple, set, frozenset, deque)):
        pairs = enumerate(thing)
    else:
        return []
    return [(f'"{key}"' if isinstance(key, str) else repr(key), value) for key, value in pairs]


def _is_computed(part: nn.Module, name: str) -> bool:
    """Whether each forward pass computes the attribute, as with weight norm and pruning."""
    registered = vars(part).get("_parameters", {})
    return f"{name}_orig" in registered or f"{name}_g" in registered


def _dotted(*parts: str) -> str:
    return ".".join(part for part in parts if part)
