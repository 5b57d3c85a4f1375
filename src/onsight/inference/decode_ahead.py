"""Images prepared in threads while the model computes on those before them, in batches."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from onsight.data.pillow_pixels import Pixels
from onsight.errors import ImageError
from onsight.inference.images import ImageLike
from onsight_explain.cores import usable_cores

Item = TypeVar("Item")

_CHUNK = 8  # images per task: large enough to hide the pool's overhead, small to share evenly
_SPARE = 4  # tasks for each thread beyond those of the next batch, so that no thread runs dry
_UNUSABLE = 16  # times a batch's size: so many inputs end a batch, usable or not


class Prepared(NamedTuple):
    """An image as the model takes it, uint8 (H, W, C), or why it cannot be used."""

    image: ImageLike
    pixels: Pixels | None
    problem: str | None


def prepared_batches(
    images: Iterable[ImageLike], read: Callable[[ImageLike], Pixels], at_once: int
) -> Iterator[list[Prepared]]:
    """Batches of so many usable images in order, with the unusable ones among them.

    All cores work ahead, by one batch at most. read raises ImageError.
    """
    batch: list[Prepared] = []
    usable = 0
    for one in _prepared(images, read, at_once):
        batch.append(one)
        usable += one.problem is None
        if is_full(usable, len(batch), at_once):
            yield batch
            batch, usable = [], 0
    if batch:
        yield batch


def is_full(usable: int, inputs: int, at_once: int) -> bool:
    """Whether a batch ends here; a resumed file relies on it."""
    return usable == at_once or inputs == _UNUSABLE * at_once


def _prepared(
    images: Iterable[ImageLike], read: Callable[[ImageLike], Pixels], at_once: int
) -> Iterator[Prepared]:
    """Each image in order, with a bounded number being prepared."""
    waiting: deque[Future[list[Prepared]]] = deque()
    threads = usable_cores()
    most = -(-at_once // _CHUNK) + _SPARE * threads
    prepare = partial(_prepare, read)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
    try:
        for chunk in _chunks(images):
            waiting.append(pool.submit(prepare, chunk))
            if len(waiting) > most:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare(read: Callable[[ImageLike], Pixels], images: list[ImageLike]) -> list[Prepared]:
    prepared = []
    for image in images:
        try:
            prepared.append(Prepared(image, read(image), None))
        except ImageError as error:  # kept as text: its traceback holds the image's bytes
            prepared.append(Prepared(image, None, str(error)))
    return prepared


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk
