"""One thread that runs the network for many requests: waiting images are computed as one batch.

There is no delay to fill a batch: while a batch is computed, images for the next one are collected,
so an idle server answers at once and batches grow with the load.

B images, C channels, H height, W width.
"""

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from onsight.data.pixels import Pixels
from onsight.serve.monitoring import log

Compute = Callable[[Pixels], Sequence[object]]  # images uint8 (B, H, W, C) -> B results
_Future = asyncio.Future[Any]
_NICE = 10


class QueueFull(Exception):
    """No more images can wait."""


class InferenceFailed(Exception):
    """The network failed on this image when it was computed alone."""


@dataclass
class _WaitingImage:
    pixels: Pixels
    future: _Future
    alone: bool = False  # compute it by itself, since the batch it was in has failed


class Batcher:
    """A bounded queue of images and the thread that computes them."""

    def __init__(
        self,
        compute: Compute,
        batch_size: int,
        max_images: int,  # waiting, being decoded or being computed
        observe: Callable[[int], object],  # called with the size of each batch
    ) -> None:
        self._compute = compute
        self._batch_size = batch_size
        self._max_images = max_images
        self._observe = observe
        self._changed = threading.Condition()
        self._waiting: deque[_WaitingImage] = deque()
        self._calls: deque[tuple[Callable[[], object], _Future]] = deque()
        self._admitted = 0
        self._closing = self._has_ended = False
        self._thread = threading.Thread()
        self.start()

    def start(self) -> None:
        """Start the thread, or start it again after it died; waiting images are kept."""
        self._has_ended = False
        self._thread = threading.Thread(target=self._work, name="compute", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    @property
    def length(self) -> int:
        """The number of images that were admitted and are not answered yet."""
        return self._admitted

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Reserve places for the images of a request, all or none. Raises QueueFull."""
        with self._changed:
            if self._admitted + count > self._max_images:
                raise QueueFull
            self._admitted += count
            if self._has_ended:  # the model was replaced while the request was received
                self.start()
        try:
            yield
        finally:
            with self._changed:
                self._admitted -= count
                self._changed.notify()

    def put(self, pixels: Pixels, future: _Future) -> None:
        """Queue an image, from any thread; its result resolves the future."""
        with self._changed:
            self._waiting.append(_WaitingImage(pixels, future))
            self._changed.notify()

    async def call(self, function: Callable[[], object]) -> Any:
        """Run a function that uses the network between two batches, and return its result."""
        future: _Future = asyncio.get_running_loop().create_future()
        with self._changed:
            self._calls.append((function, future))
            self._changed.notify()
        result = await future
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Let the thread end whenever every admitted image is answered."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _work(self) -> None:
        yield_to_clients()
        try:
            while self._wait_for_work():
                if self._calls:
                    self._run_call(*self._calls.popleft())
                else:
                    self._run_batch(self._take_batch())
        except BaseException as error:
            log("worker died", error=repr(error))

    def _wait_for_work(self) -> bool:
        """Return False when the batcher is closed and all its work is done."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._waiting or self._calls or (self._closing and not self._admitted)
            )
            self._has_ended = not (self._waiting or self._calls)
            return not self._has_ended

    def _take_batch(self) -> list[_WaitingImage]:
        with self._changed:
            if self._waiting[0].alone:
                return [self._waiting.popleft()]
            count = min(self._batch_size, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]

    def _run_batch(self, batch: Sequence[_WaitingImage]) -> None:
        try:
            results = self._compute(np.stack([image.pixels for image in batch]))
        except BaseException as error:
            log("batch failed", images=len(batch), error=repr(error))
            self._retry_one_by_one(batch)
            if not isinstance(error, Exception):
                raise
            return
        self._observe(len(batch))
        _resolve_all((image.future, result) for image, result in zip(batch, results, strict=True))

    def _retry_one_by_one(self, batch: Sequence[_WaitingImage]) -> None:
        if len(batch) == 1:
            return resolve(batch[0].future, InferenceFailed())
        with self._changed:
            self._waiting.extendleft(
                _WaitingImage(image.pixels, image.future, alone=True) for image in batch[::-1]
            )
        return None

    def _run_call(self, function: Callable[[], object], future: _Future) -> None:
        try:
            resolve(future, function())
        except Exception as error:
            resolve(future, error)
        except BaseException:
            resolve(future, InferenceFailed())
            raise


def resolve(future: _Future, result: object) -> None:
    """Set the result of a future from another thread."""
    _resolve_all([(future, result)])


def yield_to_clients() -> None:
    """Lower the priority of this thread and those it starts, where threads have a priority.

    The thread that talks to clients then gets the processor first.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _resolve_all(results: Iterable[tuple[_Future, object]]) -> None:
    """Set the results of a batch in one call of the event loop."""
    results = list(results)
    results[0][0].get_loop().call_soon_threadsafe(_set_results, results)


def _set_results(results: Iterable[tuple[_Future, object]]) -> None:
    for future, result in results:
        if not future.done():
            future.set_result(result)
