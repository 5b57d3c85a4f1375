"""Where what-ifs reach into a script's run, in the process that runs it."""

import ast
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict

from torch import nn
from torch.utils.data import DataLoader

from onsight.explainer.tracing.calls import Around, RootCalls, kind_of
from onsight.explainer.tracing.patches import Patches


class LoaderArguments(TypedDict):
    """The arguments that a script gives a DataLoader, its defaults included."""

    dataset: Any
    batch_size: int | None
    shuffle: bool | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Any
    pin_memory: bool
    timeout: float
    multiprocessing_context: Any
    prefetch_factor: int | None
    persistent_workers: bool


OnLoader = Callable[[DataLoader[Any], LoaderArguments], None]
OnSource = Callable[[ast.Module], dict[str, object]]


class Hooks:
    """What-ifs register their changes here; `install` makes them.

    is_skipped: whether a call of a module now is not one of the training loop; is_evaluation:
    whether no update follows a forward of the network now; notes: changes that were not possible,
    or not completely.
    """

    def __init__(
        self,
        patches: Patches,
        is_skipped: Callable[[], bool],
        is_evaluation: Callable[[nn.Module], bool],
    ) -> None:
        self.patches, self.is_skipped, self.is_evaluation = patches, is_skipped, is_evaluation
        self.notes: list[str] = []
        self._loaders: list[OnLoader] = []
        self._networks: list[Around] = []
        self._sources: list[OnSource] = []

    def on_loader(self, change: OnLoader) -> None:
        """Change the arguments of every DataLoader before it is made."""
        self._loaders.append(change)

    def around_network(self, around: Around) -> None:
        """Route calls of the network through this; the first one registered is the outermost."""
        self._networks.append(around)

    def on_source(self, rewrite: OnSource) -> None:
        """Rewrite the script's syntax tree; returns names that the script then needs."""
        self._sources.append(rewrite)

    def install(self) -> None:
        """Make the changes."""
        if self._loaders:
            self.patches.put(DataLoader, "__init__", self._make_loader(DataLoader.__init__))
        if self._networks:
            RootCalls(self._around, self.is_skipped).install(self.patches)

    def rewrite(self, tree: ast.Module) -> dict[str, object]:
        """Rewrite the script's syntax tree in place; returns the names that it then needs."""
        names: dict[str, object] = {}
        for rewrite in self._sources:
            names |= rewrite(tree)
        return names

    def _make_loader(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def make(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(loader, *args, **kwargs)
            bound.apply_defaults()
            arguments: Any = {name: bound.arguments[name] for name in bound.arguments}
            del arguments["self"]
            for change in self._loaders:
                change(loader, arguments)
            original(loader, **arguments)

        return make

    def _around(self, module: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
        if kind_of(module) == "network":
            for around in reversed(self._networks):
                proceed = partial(_through, around, module, proceed)
        return proceed(*args)


def _through(around: Around, module: nn.Module, proceed: Callable[..., Any], *args: Any) -> Any:
    return around(module, args, proceed)


def set_workers(arguments: LoaderArguments, workers: int) -> None:
    """Change num_workers; for 0, also the arguments that DataLoader would then refuse."""
    arguments["num_workers"] = workers
    if workers == 0:
        arguments |= {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}
        arguments |= {"multiprocessing_context": None}


def is_drawn(arguments: LoaderArguments) -> bool:
    """Whether the loader draws its items in random order, as loaders for training do."""
    return bool(arguments["shuffle"]) or arguments["sampler"] is not None
