"""Hooks by which what-ifs change a script in the process that runs it."""

import ast
import inspect
import math
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypedDict

from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from onsight_explain.script.memory import MAX_FILL_SECONDS
from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.forwards import Around, RootCalls, kind_of
from onsight_explain.tracing.patches import Patches, when_imported


class LoaderArguments(TypedDict):
    """The arguments that a script passes to DataLoader, including defaults."""

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
    """Collects the changes of what-ifs; `install` puts them into effect."""

    def __init__(
        self,
        patches: Patches,
        is_skipped: Callable[[], bool],
        is_evaluating: Callable[[], bool],
        clock: PhaseClock | None = None,
        is_training_line: Callable[[], bool] = lambda: False,
        first_step_due: float = math.inf,
    ) -> None:
        self.patches = patches
        self.is_skipped = is_skipped  # whether a module is being called outside the training loop
        self.is_evaluating = is_evaluating  # whether no update follows the current forward
        self.clock = clock or PhaseClock()  # that measures the script's time
        # Whether the line that creates a loader now is known to create the training loader, which
        # may not sample at random.
        self.is_training_line = is_training_line
        self.first_step_due = first_step_due  # monotonic time; a later first step is not waited for
        self.notes: list[str] = []  # changes that were impossible or incomplete
        self._loader_changes: list[OnLoader] = []
        self._network_changes: list[Around] = []
        self._source_changes: list[OnSource] = []
        self._batch_samplers: list[Any] = []  # one per loader created so far
        self._resized: list[tuple[Any, int | None]] = []  # datasets, with their new batch size

    @property
    def max_fill_seconds(self) -> float:
        """How long one cache may be filled: half of the time left to the first step, at most."""
        return min(MAX_FILL_SECONDS, (self.first_step_due - time.monotonic()) / 2)

    def on_loader(self, change: OnLoader) -> None:
        """Change the arguments of every DataLoader before it is created."""
        self._loader_changes.append(change)

    def around_network(self, around: Around) -> None:
        """Route calls of the network through this; the first one registered is the outermost."""
        self._network_changes.append(around)

    def on_source(self, rewrite: OnSource) -> None:
        """Rewrite the script's syntax tree; `rewrite` returns names that the script then needs."""
        self._source_changes.append(rewrite)

    def install(self) -> None:
        """Put the changes into effect."""
        if self._loader_changes:
            self.patches.put(DataLoader, "__init__", self._create_loader(DataLoader.__init__))
            when_imported("fastai.data.load", self._change_fastai, self.patches)
        if self._network_changes:
            RootCalls(self._around, self.is_skipped).install(self.patches)

    def is_for_training(self, arguments: LoaderArguments) -> bool:
        """Return whether the loader shuffles or samples items or is known to be for training."""
        is_stream = isinstance(arguments["dataset"], IterableDataset)  # in its own order
        is_random = is_stream or bool(arguments["shuffle"]) or arguments["sampler"] is not None
        return is_random or self.is_training_line()

    def rewrite(self, tree: ast.Module) -> dict[str, object]:
        """Rewrite the script's syntax tree in place; return the globals that the new code needs."""
        names: dict[str, object] = {}
        for rewrite in self._source_changes:
            names |= rewrite(tree)
        return names

    def _create_loader(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @wraps(original)  # Lightning reads the signature to create the loader again
        def create(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(loader, *args, **kwargs)
            bound.apply_defaults()
            arguments: Any = dict(bound.arguments)
            del arguments["self"]
            if not self._is_copy(arguments):
                self._change_loader(loader, arguments)
            original(loader, **arguments)
            if arguments["batch_sampler"] is None:  # it has created one, which copies are given
                self._batch_samplers.append(loader.batch_sampler)

        return create

    def _is_copy(self, arguments: LoaderArguments) -> bool:
        """Return whether a library creates this loader from one that was already changed."""
        sampler, dataset = arguments["batch_sampler"], arguments["dataset"]
        if sampler is not None:
            return any(sampler is known for known in self._batch_samplers)
        size = arguments["batch_size"]
        return any(dataset is known and size == new_size for known, new_size in self._resized)

    def _change_loader(self, loader: Any, arguments: LoaderArguments) -> None:
        size = arguments["batch_size"]
        for change in self._loader_changes:
            change(loader, arguments)
        if arguments["batch_size"] != size:
            self._resized.append((arguments["dataset"], arguments["batch_size"]))

    def _change_fastai(self, module: Any) -> None:
        """Make the changes in fastai's loaders, which are not torch's."""
        original = module.DataLoader.__init__

        def create(loader: Any, dataset: Any = None, **kwargs: Any) -> None:
            arguments = fastai_arguments(dataset, kwargs)
            self._change_loader(loader, arguments)
            original(loader, dataset, **fastai_keywords(arguments, kwargs))

        self.patches.put(module.DataLoader, "__init__", create)

    def _around(self, module: nn.Module, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
        if kind_of(module) == "network":
            for around in reversed(self._network_changes):
                proceed = partial(_call_around, around, module, proceed)
        return proceed(*args)


def _call_around(around: Around, module: nn.Module, proceed: Callable[..., Any], *args: Any) -> Any:
    return around(module, args, proceed)


def set_workers(arguments: LoaderArguments, workers: int) -> None:
    """Change num_workers; for 0, also reset the arguments that DataLoader would then reject."""
    arguments["num_workers"] = workers
    if workers == 0:
        arguments |= {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}
        arguments |= {"multiprocessing_context": None}


def fastai_arguments(dataset: Any, keywords: dict[str, Any]) -> LoaderArguments:
    """Translate the keywords of a fastai loader into torch's arguments."""
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
    """Return the keywords of a fastai loader after changes to torch's arguments."""
    names = ("num_workers", "pin_memory", "timeout", "persistent_workers")
    changed = {name: arguments[name] for name in names}  # type: ignore[literal-required]
    rest = {name: value for name, value in keywords.items() if name != "batch_size"}
    return rest | changed | {"bs": arguments["batch_size"]}
