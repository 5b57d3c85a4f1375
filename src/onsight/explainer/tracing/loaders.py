"""Watches loaders: the time to wait for a batch, the images in it, and which loader trains."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, dataloader

from onsight.explainer.tracing.clock import PhaseClock
from onsight.explainer.tracing.patches import Patches
from onsight.explainer.tracing.sites import Made, Sites
from onsight.explainer.tracing.timing import timed

# Every loader of torch iterates by one of these, and so do those of other libraries.
_ANY = dataloader._BaseDataLoaderIter
_WITH_WORKERS = dataloader._MultiProcessingDataLoaderIter


class Loaders:
    """Follows every loader's batches.

    on_epoch: called when a loader begins that has been trained from before. drawn: images since
    `take` was last called; current: the loader that was drawn from last.
    """

    def __init__(self, clock: PhaseClock, sites: Sites, on_epoch: Callable[[], None]) -> None:
        self.clock, self.sites, self.on_epoch = clock, sites, on_epoch
        self.current: Any = None
        self.drawn = 0
        self._loaders: dict[int, Any] = {}  # those trained from, by id, kept alive
        self._updates: Counter[int] = Counter()  # of each of them
        self._made: dict[int, Made] = {}  # by id, also of the batch samplers and data sets

    def install(self, patches: Patches) -> None:
        """Start watching."""
        patches.put(DataLoader, "__init__", self._make(DataLoader.__init__))
        patches.put(_ANY, "__init__", self._begin(_ANY.__init__))
        patches.put(_ANY, "__next__", self._draw(_ANY.__next__))
        patches.put(_WITH_WORKERS, "_reset", self._begin_again(_WITH_WORKERS._reset))
        starting = timed(_WITH_WORKERS.__init__, self.clock, "data")
        patches.put(_WITH_WORKERS, "__init__", starting)

    @property
    def training(self) -> Any:
        """The loader that most updates followed; None if there is none."""
        return self._loaders[self._updates.most_common(1)[0][0]] if self._updates else None

    def made(self, loader: Any) -> Made:
        """Where a loader was made; for a copy that a library makes, where the first one was."""
        return self._made.get(id(loader)) or Made()

    def take(self) -> int:
        """How many images have been drawn since this was last asked for."""
        drawn, self.drawn = self.drawn, 0
        return drawn

    def note_update(self) -> None:
        """An update followed the batch drawn last."""
        if self.current is not None:
            self._loaders[id(self.current)] = self.current
            self._updates[id(self.current)] += 1

    def is_of_evaluation(self) -> bool:
        """Whether the last batch came from a loader that no update has followed so far."""
        known = bool(self._loaders) and self.current is not None
        return known and id(self.current) not in self._loaders

    def _make(self, original: Callable[..., None]) -> Callable[..., None]:
        def make(loader: Any, *args: Any, **kwargs: Any) -> None:
            made = self.sites.made()
            original(loader, *args, **kwargs)
            parts = [one for one in (loader.batch_sampler, loader.dataset) if one is not None]
            if made.maker:
                made = next((self._made[id(one)] for one in parts if id(one) in self._made), made)
            for one in (loader, *parts):
                self._made[id(one)] = made

        return make

    def _begin(self, original: Callable[..., None]) -> Callable[..., None]:
        def begin(batches: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            batches.watched_loader = loader
            self._note_epoch(loader)
            original(batches, loader, *args, **kwargs)

        return begin

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
                self.current = getattr(batches, "watched_loader", None)
                self.drawn += batch_length(batch)
            return batch

        return draw


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
