"""Where what-ifs reach into a script's run, in the process that runs it."""

import ast
import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypedDict

from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from onsight_explain.tracing.calls import Around, RootCalls, kind_of
from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.imports import when_imported
from onsight_explain.tracing.patches import Patches


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

    is_skipped: whether a call of a module now is not one of the training loop; is_evaluating:
    whether no update follows the network's forward that is under way; clock: what the script's time
    is measured by; is_known: whether a loader that is made now is known to be for training, though
    it may draw nothing; notes: changes that were not possible, or not completely.
    """

    def __init__(
        self,
        patches: Patches,
        is_skipped: Callable[[], bool],
        is_evaluating: Callable[[], bool],
        clock: PhaseClock | None = None,
        is_known: Callable[[], bool] = lambda: False,
    ) -> None:
        self.patches, self.is_skipped, self.is_evaluating = patches, is_skipped, is_evaluating
        self.clock, self.is_known = clock or PhaseClock(), is_known
        self.notes: list[str] = []
        self._loaders: list[OnLoader] = []
        self._networks: list[Around] = []
        self._sources: list[OnSource] = []
        self._changed: list[Any] = []  # batch samplers of loaders that were made
        self._resized: list[tuple[Any, int | None]] = []  # data sets, with their new batch size

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
            when_imported("fastai.data.load", self._change_fastai, self.patches)
        if self._networks:
            RootCalls(self._around, self.is_skipped).install(self.patches)

    def is_for_training(self, arguments: LoaderArguments) -> bool:
        """Whether the loader draws its items in random order, or is known to be for training."""
        is_stream = isinstance(arguments["dataset"], IterableDataset)  # which draws them itself
        is_drawn = is_stream or bool(arguments["shuffle"]) or arguments["sampler"] is not None
        return is_drawn or self.is_known()

    def rewrite(self, tree: ast.Module) -> dict[str, object]:
        """Rewrite the script's syntax tree in place; returns the names that it then needs."""
        names: dict[str, object] = {}
        for rewrite in self._sources:
            names |= rewrite(tree)
        return names

    def _make_loader(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @wraps(original)  # Lightning reads its signature, to make the loader anew
        def make(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(loader, *args, **kwargs)
            bound.apply_defaults()
            arguments: Any = {name: bound.arguments[name] for name in bound.arguments}
            del arguments["self"]
            if not self._is_copy(arguments):
                self._change(loader, arguments)
            original(loader, **arguments)
            if arguments["batch_sampler"] is None:  # it has made its own, which a copy is given
                self._changed.append(loader.batch_sampler)

        return make

    def _is_copy(self, arguments: LoaderArguments) -> bool:
        """Whether a library makes a loader anew from one that has been changed already."""
        sampler, dataset = arguments["batch_sampler"], arguments["dataset"]
        if sampler is not None:
            return any(sampler is one for one in self._changed)
        size = arguments["batch_size"]
        return any(dataset is one and size == new for one, new in self._resized)

    def _change(self, loader: Any, arguments: LoaderArguments) -> None:
        size = arguments["batch_size"]
        for change in self._loaders:
            change(loader, arguments)
        if arguments["batch_size"] != size:
            self._resized.append((arguments["dataset"], arguments["batch_size"]))

    def _change_fastai(self, module: Any) -> None:
        """The same changes for fastai's loaders, which are not torch's."""
        original = module.DataLoader.__init__

        def make(loader: Any, dataset: Any = None, **kwargs: Any) -> None:
            arguments = fastai_arguments(dataset, kwargs)
            self._change(loader, arguments)
            original(loader, dataset, **fastai_keywords(arguments, kwargs))

        self.patches.put(module.DataLoader, "__init__", make)

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


def fastai_arguments(dataset: Any, keywords: dict[str, Any]) -> LoaderArguments:
    """What a fastai loader is given, in torch's words."""
    size = keywords.get("batch_size")
    return {
        "dataset": dataset,
        "batch_size": keywords.get("bs") if size is None else size,
        "shuffle": keywords.get("shuffle", False),
        "sampler": None,
        "batch_sampler": None,
        "num_workers": keywords.get("num_workers", 0),
        "collate_fn": None,
        "pin_memory": keywords.get("pin_memory", False),
        "timeout": keywords.get("timeout", 0),
        "multiprocessing_context": None,
        "prefetch_factor": None,
        "persistent_workers": keywords.get("persistent_workers", False),
    }


def fastai_keywords(arguments: LoaderArguments, keywords: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a fastai loader after changes."""
    names = ("num_workers", "pin_memory", "timeout", "persistent_workers")
    changed = {name: arguments[name] for name in names}  # type: ignore[literal-required]
    kept = {name: value for name, value in keywords.items() if name != "batch_size"}
    return kept | changed | {"bs": arguments["batch_size"]}
