"""Watches loaders: the time to wait for each batch, its images, and which loader trains."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, dataloader

from onsight_explain.tracing.clock import PhaseClock, timed
from onsight_explain.tracing.patches import Patches, when_imported
from onsight_explain.tracing.sites import ObjectOrigin, Sites

# Every loader of torch iterates with one of these, and so do those of other libraries.
_ANY_ITERATOR = dataloader._BaseDataLoaderIter
_WORKER_ITERATOR = dataloader._MultiProcessingDataLoaderIter


class LoaderWatch:
    """Follows the batches of every loader.

    A library may load the next batch before it trains on the current one, and evaluate in between.
    Therefore the images loaded are counted for each loader separately, until `take`.
    """

    def __init__(self, clock: PhaseClock, sites: Sites, on_epoch: Callable[[], None]) -> None:
        self.clock, self.sites = clock, sites
        self.on_epoch = on_epoch  # called when a loader that has been trained from starts again
        self.is_used = False
        self.evaluation: Any = None  # the loader of the last evaluation
        self._current: Any = None  # loader of the last batch
        # The loader and the number of images loaded, by the loader's id.
        self._waiting: dict[int, tuple[Any, int]] = {}
        self._evaluated = set[int]()  # loaders whose last batch was evaluated
        self._sources: list[Any] = []  # loaders of the batch trained on last
        self._trained: dict[int, Any] = {}  # training loaders by id, kept unique by the reference
        self._updates: Counter[int] = Counter()  # updates per loader, by id
        self._origins: dict[int, ObjectOrigin] = {}  # by id, also of batch samplers and datasets

    def install(self, patches: Patches) -> None:
        """Start watching."""
        self._watch_creation(patches, DataLoader)
        when_imported(
            "fastai.data.load",
            lambda module: self._watch_creation(patches, module.DataLoader),
            patches,
        )
        patches.put(_ANY_ITERATOR, "__init__", self._begin(_ANY_ITERATOR.__init__))
        patches.put(_ANY_ITERATOR, "__next__", self._draw(_ANY_ITERATOR.__next__))
        patches.put(_WORKER_ITERATOR, "_reset", self._restart(_WORKER_ITERATOR._reset))
        patches.put(_WORKER_ITERATOR, "__init__", self._start_workers(_WORKER_ITERATOR.__init__))

    @property
    def training(self) -> Any:
        """The loader that most updates followed; None if there is none."""
        return self._trained[self._updates.most_common(1)[0][0]] if self._updates else None

    def origin(self, loader: Any) -> ObjectOrigin:
        """Return where a loader was created; for a copy that a library makes, its original."""
        return self._origins.get(id(loader)) or ObjectOrigin()

    def take(self) -> int:
        """Return how many images have been loaded for training since the last call."""
        taken = [key for key in self._waiting if self._is_for_training(key)]
        if taken:
            self._sources = [self._waiting[key][0] for key in taken]
        count = sum(self._waiting[key][1] for key in taken)
        self._waiting = {}
        return count

    def note_update(self) -> None:
        """Attribute an update to the loaders of the latest batch."""
        for loader in self._sources:
            self._trained[id(loader)] = loader
            self._updates[id(loader)] += 1

    def note_evaluation(self) -> None:
        """Record that the latest batch is evaluated; training on it may still follow."""
        if self._current is None:
            return
        self._evaluated.add(id(self._current))
        if self._trained and id(self._current) not in self._trained:
            self.evaluation = self._current

    def note_training(self) -> None:
        """Record that a backward pass followed a supposed evaluation."""
        self._evaluated.discard(id(self._current))

    def is_evaluation_batch(self) -> bool:
        """Return whether the last batch is from a loader that no update has followed yet."""
        key = id(self._current)
        if not self._trained or self._current is None or key in self._trained:
            return False
        # Where batches are loaded ahead, either this batch is finished or one for training waits.
        is_finished = key in self._evaluated
        return not is_finished and not any(key in self._trained for key in self._waiting)

    def _is_for_training(self, key: int) -> bool:
        if key in self._trained or key not in self._evaluated:
            return True
        return not self._trained and key == id(self._current)

    def _watch_creation(self, patches: Patches, kind: type) -> None:
        patches.put(kind, "__init__", self._create(kind.__init__))  # type: ignore[misc]

    def _create(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)  # Lightning reads the signature to create the loader again
        def create(loader: Any, *args: Any, **kwargs: Any) -> None:
            origin = self.sites.origin(loader)
            original(loader, *args, **kwargs)
            parts = [getattr(loader, name, None) for name in ("batch_sampler", "dataset")]
            parts = [part for part in parts if part is not None]
            if origin.maker:
                known = (self._origins[id(part)] for part in parts if id(part) in self._origins)
                origin = next(known, origin)
            for owner in (loader, *parts):
                self._origins[id(owner)] = origin

        return create

    def _begin(self, original: Callable[..., None]) -> Callable[..., None]:
        def begin(batches: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            watched = getattr(loader, "d", loader)  # fastai passes torch a stand-in
            batches.watched_loader = watched
            self._note_epoch(watched)
            original(batches, loader, *args, **kwargs)

        return begin

    def _start_workers(self, original: Callable[..., None]) -> Callable[..., None]:
        timed_original = timed(original, self.clock, "data")

        def start_workers(batches: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            self._note_epoch(getattr(loader, "d", loader))  # before `begin`, which runs inside
            timed_original(batches, loader, *args, **kwargs)

        return start_workers

    def _restart(self, original: Callable[..., None]) -> Callable[..., None]:
        def restart(batches: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter:
                self._note_epoch(loader)
            with self.clock.within("data"):
                original(batches, loader, first_iter)

        return restart

    def _note_epoch(self, loader: Any) -> None:
        if id(loader) in self._trained and not self.clock.is_elsewhere():
            self.on_epoch()

    def _draw(self, original: Callable[..., Any]) -> Callable[..., Any]:
        timed_original = timed(original, self.clock, "data")

        def load(batches: Any) -> Any:
            is_inner = self.clock.phase == "data"  # a loader inside a dataset
            batch = timed_original(batches)
            if not is_inner:
                self._note_batch(getattr(batches, "watched_loader", None), batch)
            return batch

        return load

    def _note_batch(self, loader: Any, batch: Any) -> None:
        key = id(loader)
        before = 0 if key in self._evaluated else self._waiting.get(key, (loader, 0))[1]
        self._evaluated.discard(key)
        self._waiting[key] = loader, before + batch_length(batch)
        self._current, self.is_used = loader, True


def batch_length(batch: Any, is_part: bool = False) -> int:
    """Return how many images a batch holds, by its first part: a tensor, or a list of images."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    if isinstance(batch, Mapping):
        return batch_length(next(iter(batch.values()), None), is_part)
    if not isinstance(batch, list | tuple) or not batch:
        return 0
    first = batch[0]
    if isinstance(first, Tensor):
        is_image = is_part and first.ndim <= 3  # in a list of images, as for detection
    else:
        is_image = not isinstance(first, Mapping | list | tuple)
    return len(batch) if is_image else batch_length(first, True)
