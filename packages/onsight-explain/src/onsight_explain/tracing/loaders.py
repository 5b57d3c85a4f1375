"""Watches loaders: the time to wait for a batch, the images in it, and which loader trains."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, dataloader

from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.imports import when_imported
from onsight_explain.tracing.patches import Patches
from onsight_explain.tracing.sites import Made, Sites
from onsight_explain.tracing.timing import timed

# Every loader of torch iterates by one of these, and so do those of other libraries.
_ANY = dataloader._BaseDataLoaderIter
_WITH_WORKERS = dataloader._MultiProcessingDataLoaderIter


class Loaders:
    """Follows every loader's batches.

    on_epoch: called when a loader begins that has been trained from before. A library may draw
    the next batch before it trains on one, and evaluate in between, so each loader's batches wait
    by themselves to be taken.
    """

    def __init__(self, clock: PhaseClock, sites: Sites, on_epoch: Callable[[], None]) -> None:
        self.clock, self.sites, self.on_epoch = clock, sites, on_epoch
        self.is_used = False
        self.evaluation: Any = None  # the loader of the last evaluation
        self._current: Any = None  # the loader drawn from last
        self._waiting: dict[int, tuple[Any, int]] = {}  # loaders by id, and images drawn
        self._evaluated = set[int]()  # loaders whose last batch was evaluated
        self._sources: list[Any] = []  # loaders of the batch trained on last
        self._loaders: dict[int, Any] = {}  # those trained from, by id, kept alive
        self._updates: Counter[int] = Counter()  # of each of them
        self._made: dict[int, Made] = {}  # by id, also of the batch samplers and data sets

    def install(self, patches: Patches) -> None:
        """Start watching."""
        self._watch_making(patches, DataLoader)
        when_imported(
            "fastai.data.load",
            lambda module: self._watch_making(patches, module.DataLoader),
            patches,
        )
        patches.put(_ANY, "__init__", self._begin(_ANY.__init__))
        patches.put(_ANY, "__next__", self._draw(_ANY.__next__))
        patches.put(_WITH_WORKERS, "_reset", self._begin_again(_WITH_WORKERS._reset))
        patches.put(_WITH_WORKERS, "__init__", self._begin_workers(_WITH_WORKERS.__init__))

    def _watch_making(self, patches: Patches, kind: type) -> None:
        """Remember where loaders of this class are made."""
        patches.put(kind, "__init__", self._make(kind.__init__))  # type: ignore[misc]

    @property
    def training(self) -> Any:
        """The loader that most updates followed; None if there is none."""
        return self._loaders[self._updates.most_common(1)[0][0]] if self._updates else None

    def made(self, loader: Any) -> Made:
        """Where a loader was made; for a copy that a library makes, where the first one was."""
        return self._made.get(id(loader)) or Made()

    def take(self) -> int:
        """How many images have been drawn to train on since this was last asked for."""
        taken = [key for key in self._waiting if self._is_to_train_on(key)]
        if taken:
            self._sources = [self._waiting[key][0] for key in taken]
        count = sum(self._waiting[key][1] for key in taken)
        self._waiting = {}
        return count

    def note_update(self) -> None:
        """An update followed the batch taken last."""
        for loader in self._sources:
            self._loaders[id(loader)] = loader
            self._updates[id(loader)] += 1

    def note_evaluation(self) -> None:
        """The batch drawn last is evaluated, though it may also be trained on afterwards."""
        if self._current is None:
            return
        self._evaluated.add(id(self._current))
        if self._loaders and id(self._current) not in self._loaders:
            self.evaluation = self._current

    def note_training(self) -> None:
        """What looked like an evaluation was followed by a backward pass."""
        self._evaluated.discard(id(self._current))

    def is_of_evaluation(self) -> bool:
        """Whether what was drawn last is from a loader that no update has followed so far."""
        key = id(self._current)
        if not self._loaders or self._current is None or key in self._loaders:
            return False
        # Its batch is done with, or one to train on waits: both happen where batches are drawn
        # ahead.
        return key not in self._evaluated and not any(one in self._loaders for one in self._waiting)

    def _is_to_train_on(self, key: int) -> bool:
        if key in self._loaders or key not in self._evaluated:
            return True
        return not self._loaders and key == id(self._current)

    def _make(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)  # Lightning reads its signature, to make the loader anew
        def make(loader: Any, *args: Any, **kwargs: Any) -> None:
            made = self.sites.made()
            original(loader, *args, **kwargs)
            parts = [getattr(loader, name, None) for name in ("batch_sampler", "dataset")]
            parts = [one for one in parts if one is not None]
            if made.maker:
                made = next((self._made[id(one)] for one in parts if id(one) in self._made), made)
            for one in (loader, *parts):
                self._made[id(one)] = made

        return make

    def _begin(self, original: Callable[..., None]) -> Callable[..., None]:
        def begin(batches: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            of = getattr(loader, "d", loader)  # fastai's loaders show torch a stand-in
            batches.watched_loader = of
            self._note_epoch(of)
            original(batches, loader, *args, **kwargs)

        return begin

    def _begin_workers(self, original: Callable[..., None]) -> Callable[..., None]:
        starting = timed(original, self.clock, "data")

        def begin_workers(batches: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            self._note_epoch(getattr(loader, "d", loader))  # before `_begin`, which is inside
            starting(batches, loader, *args, **kwargs)

        return begin_workers

    def _begin_again(self, original: Callable[..., None]) -> Callable[..., None]:
        def begin_again(batches: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter:
                self._note_epoch(loader)
            with self.clock.within("data"):
                original(batches, loader, first_iter)

        return begin_again

    def _note_epoch(self, loader: Any) -> None:
        if id(loader) in self._loaders and not self.clock.is_elsewhere():
            self.on_epoch()

    def _draw(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(batches: Any) -> Any:
            is_inner = self.clock.phase == "data"  # a loader inside a data set
            depth = self.clock.enter("data")
            try:
                batch = original(batches)
            finally:
                self.clock.leave(depth)
            if not is_inner:
                self._note_batch(getattr(batches, "watched_loader", None), batch)
            return batch

        return draw

    def _note_batch(self, loader: Any, batch: Any) -> None:
        key = id(loader)
        before = 0 if key in self._evaluated else self._waiting.get(key, (loader, 0))[1]
        self._evaluated.discard(key)
        self._waiting[key] = loader, before + batch_length(batch)
        self._current, self.is_used = loader, True


def batch_length(batch: Any, is_part: bool = False) -> int:
    """How many images a batch holds, by its first part: a tensor, or a list of images."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    if isinstance(batch, Mapping):
        return batch_length(next(iter(batch.values()), None), is_part)
    if not isinstance(batch, list | tuple) or not batch:
        return 0
    first = batch[0]
    if isinstance(first, Tensor):
        is_image = is_part and first.ndim <= 3  # one of a list, as for detection
    else:
        is_image = not isinstance(first, Mapping | list | tuple)
    return len(batch) if is_image else batch_length(first, True)
