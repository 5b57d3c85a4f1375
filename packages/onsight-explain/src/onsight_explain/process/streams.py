"""Data sets without numbered items: what an item costs, and how many workers can share them."""

import copy
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data._utils import worker

from onsight_explain.process.items import has_slept, sleeps
from onsight_explain.script.memory import item_bytes
from onsight_explain.script.seeding import undisturbed
from onsight_explain.script.trace import ItemFacts
from onsight_explain.text import plural
from onsight_explain.tracing.loaders import batch_length

_SECONDS, _ITEMS = 1.5, 256
_PATIENCE_SECONDS = 3.0  # for a stream that waits for something


@dataclass
class Stream:
    """What iterating a copy of a data set showed.

    shards: files that workers share, if known; asks: whether it asks which worker it is in; None
    if it could not be iterated.
    """

    item: ItemFacts | None = None
    shards: int | None = None
    asks: bool | None = None

    @property
    def most_workers(self) -> int | None:
        """More would have no work, or would all read the same; None if any number may do."""
        return self.shards or (1 if self.asks is False else None)

    def sentences(self, batch_size: int | None, workers: int) -> list[str]:
        """What cannot be tried, and why."""
        found = ["its data set has no numbered items, so keeping them in memory was not tried"]
        if self.item is None:
            found.append("its data set could not be iterated once more, so an item was not timed")
        if self.shards:
            found.append(f"{plural(self.shards, 'shard')}: more workers than that have no work")
        elif self.asks is False:
            found.append(
                "its data set never asks which worker it is in (torch.utils.data.get_worker_info), "
                + (
                    f"so each of the {workers} workers reads everything: items come {workers} times"
                    if workers > 1
                    else "so several workers would all read everything: they were not tried"
                )
            )
        if not batch_size:
            found.append("its data set makes the batches, so larger ones were not tried")
        return found


def describe_stream(dataset: Any) -> Stream:
    """Iterate a copy of a data set for a moment, in a thread, since it may wait for ever."""
    stream = Stream(shards=count_shards(dataset))

    def look() -> None:
        with undisturbed(), _noticed_worker() as noticed:
            stream.item = _timed(copy.copy(dataset))
        stream.asks = noticed.is_asked

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    return stream


class _Noticed:
    """The only worker of a loader; notices whether anybody asks."""

    def __init__(self) -> None:
        self.is_asked = False

    def __getattr__(self, name: str) -> int:
        self.is_asked = True
        return {"id": 0, "num_workers": 1, "seed": 0}[name]


@contextmanager
def _noticed_worker() -> Iterator[_Noticed]:
    """Let data sets believe that they are in a worker."""
    former, noticed = worker._worker_info, _Noticed()
    worker._worker_info = noticed  # type: ignore[assignment]
    try:
        yield noticed
    finally:
        worker._worker_info = former


def _timed(dataset: Any) -> ItemFacts | None:
    """What an item costs; those that are whole batches count as many."""
    begun, worked, slept = time.perf_counter(), time.thread_time(), sleeps()
    count, item = 0, None
    for item in itertools.islice(iter(dataset), _ITEMS):
        count += max(1, _images(item))
        if time.perf_counter() - begun > _SECONDS:
            break
    if not count:
        return None
    seconds = time.perf_counter() - begun
    waited = max(0.0, 1 - (time.thread_time() - worked) / seconds)
    return ItemFacts(
        seconds=seconds / count,
        waiting_share=waited if has_slept(sleeps() - slept, count) else 0.0,
        transform_share=0.0,
        is_random=False,
        item_bytes=item_bytes(item),
    )


def _images(item: Any) -> int:
    """How many images are in an item: more than one, if the data set makes batches."""
    first = item[0] if isinstance(item, tuple | list) and item else item
    return batch_length(item) if getattr(first, "ndim", 0) == 4 else 1


def count_shards(dataset: Any) -> int | None:
    """How many files a WebDataset reads, which its workers share."""
    first = next(iter(getattr(dataset, "pipeline", ())), None)
    files = getattr(first, "urls", None)
    return len(files) if isinstance(files, list | tuple) else None
