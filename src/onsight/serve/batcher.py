"""One thread that computes for many requests: what waits goes through the network together.

An idle server waits for nothing. While a batch is computed the next one gathers, so batches grow
with the load by themselves. B images, C channels, H height, W width.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

import numpy as np

from onsight.data.pillow_pixels import Pixels
from onsight.serve.logs import log
from onsight.serve.yielding import yield_to_clients

Compute = Callable[[Pixels], Sequence[object]]
_Answer = tuple["asyncio.Future[Any]", object]


class QueueFull(Exception):
    """No more images can wait."""


class Failed(Exception):
    """The network failed on this image, computed alone."""


@dataclass
class _Item:
    """An image that waits; alone: the batch it was in has failed."""

    pixels: Pixels
    answer: "asyncio.Future[Any]"
    alone: bool = False


class Batcher:
    """A bounded queue and the thread that works on it.

    compute: from images uint8 (B, H, W, C) to an answer for each; most: images of a
    batch; bound: images that wait, are decoded or computed; observe: called with each batch's B.
    """

    def __init__(
        self,
        compute: Compute,
        most: int,
        bound: int,
        observe: Callable[[int], object] = lambda size: None,
    ) -> None:
        self._compute = compute
        self._most = most
        self._bound = bound
        self._observe = observe
        self._changed = Condition()
        self._waiting: deque[_Item] = deque()
        self._jobs: deque[tuple[Callable[[], object], asyncio.Future[Any]]] = deque()
        self._admitted = 0
        self._closing = False
        self._thread = Thread()
        self.start()

    def start(self) -> None:
        """Start the thread, again if it has died: what waits is kept."""
        self._thread = Thread(target=self._work, name="compute", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread works, or waits for work."""
        return self._thread.is_alive()

    @property
    def length(self) -> int:
        """Images that have been admitted and are not answered yet."""
        return self._admitted

    @contextmanager
    def room(self, count: int) -> Iterator[None]:
        """Admit so many images of a request, all or none, until it ends. Raises QueueFull."""
        with self._changed:
            if self._admitted + count > self._bound:
                raise QueueFull
            self._admitted += count
        try:
            yield
        finally:
            with self._changed:
                self._admitted -= count
                self._changed.notify()

    def put(self, pixels: Pixels, answer: "asyncio.Future[Any]") -> None:
        """Queue an image; from any thread."""
        with self._changed:
            self._waiting.append(_Item(pixels, answer))
            self._changed.notify()

    async def call(self, function: Callable[[], object]) -> Any:
        """What a function gives that uses the network itself, run between two batches."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with self._changed:
            self._jobs.append((function, answer))
            self._changed.notify()
        result = await answer
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Let the thread end once everything that was admitted is answered."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _work(self) -> None:
        yield_to_clients()
        try:
            while self._wait():
                if self._jobs:
                    self._do(*self._jobs.popleft())
                else:
                    self._run(self._take())
        except BaseException as error:
            log("worker died", error=repr(error))

    def _wait(self) -> bool:
        """Wait for work; False if there will be none."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._waiting or self._jobs or (self._closing and not self._admitted)
            )
            return bool(self._waiting or self._jobs)

    def _take(self) -> list[_Item]:
        """The next batch: what waits, in the order of arrival."""
        with self._changed:
            if self._waiting[0].alone:
                return [self._waiting.popleft()]
            count = min(self._most, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]

    def _run(self, batch: Sequence[_Item]) -> None:
        """Compute a batch; one that fails is computed again, image by image."""
        try:
            rows = self._compute(np.stack([item.pixels for item in batch]))
        except BaseException as error:
            log("batch failed", images=len(batch), error=repr(error))
            self._again(batch)
            if not isinstance(error, Exception):
                raise
            return
        self._observe(len(batch))
        _give((item.answer, row) for item, row in zip(batch, rows, strict=True))

    def _again(self, batch: Sequence[_Item]) -> None:
        if len(batch) == 1:
            return _give([(batch[0].answer, Failed())])
        with self._changed:
            self._waiting.extendleft(_Item(item.pixels, item.answer, True) for item in batch[::-1])
        return None

    def _do(self, function: Callable[[], object], answer: "asyncio.Future[Any]") -> None:
        try:
            _give([(answer, function())])
        except Exception as error:
            _give([(answer, error)])
        except BaseException:
            _give([(answer, Failed())])
            raise


def _give(answers: Iterable[_Answer]) -> None:
    """Wake the requests that wait, all of a batch at once."""
    answers = list(answers)
    answers[0][0].get_loop().call_soon_threadsafe(_set, answers)


def give(answer: "asyncio.Future[Any]", result: object) -> None:
    """Answer one request from another thread."""
    _give([(answer, result)])


def _set(answers: Iterable[_Answer]) -> None:
    for future, result in answers:
        if not future.done():
            future.set_result(result)
