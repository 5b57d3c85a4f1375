"""Decodes all images of a source into one file of pixels, with threads.

Decoders release the GIL, so threads use all cores without copying between processes. Images are
written in the order of decoding.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.data.decode import pixel_digest, prepare_image
from onsight.data.decoding_memory import MEMORY, NeedsMemory
from onsight.data.fit import ImageFormat
from onsight.data.index import Problem
from onsight.data.pixels import Pixels
from onsight.data.shards.order import ShardPrefetcher
from onsight.data.sources.source import DRAW_STAGE, Source
from onsight.errors import DataError, ImageError

NO_TIME = "no time to decode it"

_CHUNK = 64  # images per task: enough to hide the pool's overhead, few enough to show progress
_CHUNK_BYTES = 16_000_000  # maximum bytes per task, of which four per thread wait in memory
_TASKS_PER_THREAD = 4

Progress = Callable[[int], None]  # called with a number of images


@dataclass(frozen=True)
class PackJob:
    """The images to decode, and their format.

    Attributes:
        source: The images.
        target: Their format. 0 channels mean 1 if all images are stored grey, otherwise 3.
        strict: Raise DataError at the first image that cannot be used.
        threads: The number of threads.
        progress: Called with numbers of decoded images.
        time_limit: When to stop, and in which order to decode; None to decode all images in the
            order of the source.
    """

    source: Source
    target: ImageFormat
    strict: bool = False
    threads: int = 1
    progress: Progress = lambda done: None
    time_limit: "TimeLimit | None" = None


class TimeLimit(NamedTuple):
    """A limit on the time for decoding.

    Attributes:
        deadline: Time on the monotonic clock after which optional images are skipped.
        order: The rows in the order of decoding, (n,).
        is_optional: Whether a row may be skipped, (n,).
    """

    deadline: float
    order: NDArray[np.int64]
    is_optional: NDArray[np.bool_]


class PackedImage(NamedTuple):
    """A decoded image that is not yet written.

    Attributes:
        source_row: Its row in the source.
        pixels: Its pixels in the target format.
        digest: Its digest before the conversion.
    """

    source_row: int
    pixels: Pixels
    digest: bytes


@dataclass
class Decoded:
    """The result of decoding a source, except the pixels, which are in the file.

    Attributes:
        channels: Channels of the images in the file.
        source_rows: The row of each image in the source.
        digests: The digest of each image.
        problems: Images that cannot be used, with reasons.
    """

    channels: int
    source_rows: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def decode_all(file: BinaryIO, job: PackJob) -> Decoded:
    """Write the pixels of all usable images to a file.

    If the target has 0 channels, the file is written with one channel and converted to three at the
    first colour image.

    Raises:
        DataError: If the job is strict and an image cannot be used.
    """
    target = job.target
    decoded = Decoded(channels=target.channels or 1)
    for chunk in _decode_until_deadline(job):
        images = [item for item in chunk if isinstance(item, PackedImage)]
        problems = [item for item in chunk if isinstance(item, Problem)]
        faults = [problem for problem in problems if problem.stage != DRAW_STAGE]
        if job.strict and faults:
            raise DataError(f"{faults[0].path}: {faults[0].reason}")
        decoded.problems += problems
        if target.channels == 0 and any(image.pixels.shape[2] == 3 for image in images):
            _convert_to_colour(file, decoded, target)
        file.write(b"".join(_encode(image.pixels, decoded.channels) for image in images))
        decoded.source_rows += [image.source_row for image in images]
        decoded.digests += [image.digest for image in images]
        job.progress(len(chunk))
    return decoded


def _decode_until_deadline(job: PackJob) -> Iterator[list[PackedImage | Problem]]:
    """Yield decoded chunks, without the optional images after the first that was skipped.

    The result is the same as if the optional images ended there.
    """
    is_late = False
    for chunk in _decode_chunks(job):
        results: list[PackedImage | Problem] = []
        for row, item in chunk:
            is_late |= isinstance(item, Problem) and item.reason == NO_TIME
            is_skipped = is_late and _is_optional(job, row)
            results.append(_skip(job, row) if is_skipped else item)
        yield results


def _is_optional(job: PackJob, row: int) -> bool:
    return job.time_limit is not None and bool(job.time_limit.is_optional[row])


def _skip(job: PackJob, row: int) -> Problem:
    return Problem(job.source.index.locators[row], DRAW_STAGE, NO_TIME)


def _decode_chunks(job: PackJob) -> Iterator[list[tuple[int, PackedImage | Problem]]]:
    """Yield chunks of rows and their images in order, with a limited number of them in memory."""
    waiting: deque[Future[list[tuple[int, PackedImage | Problem]]]] = deque()
    count = len(job.source.index)
    image_bytes = job.target.height * job.target.width * (job.target.channels or 3)
    size = max(1, min(_CHUNK, _CHUNK_BYTES // image_bytes))
    shards = job.source.shards
    order = np.arange(count) if job.time_limit is None else job.time_limit.order
    prefetcher = ShardPrefetcher(shards.part_of_row[order], shards.prefetch) if shards else None
    with ThreadPoolExecutor(job.threads, thread_name_prefix="decode") as pool:
        try:
            for start in range(0, count, size):
                rows = order[start : start + size].tolist()
                if prefetcher:
                    prefetcher.reach(start + len(rows))
                waiting.append(pool.submit(_decode_rows, job, rows))
                if len(waiting) > _TASKS_PER_THREAD * job.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _decode_rows(job: PackJob, rows: list[int]) -> list[tuple[int, PackedImage | Problem]]:
    return [(row, _decode_row(job, row)) for row in rows]


@MEMORY.held()
def _decode_row(job: PackJob, row: int) -> PackedImage | Problem:
    limit = job.time_limit
    if limit and limit.is_optional[row] and time.monotonic() > limit.deadline:
        return _skip(job, row)
    try:
        decoded, fitted = prepare_image(job.source.read(row), job.target)
    except NeedsMemory as error:  # which images are used must not depend on the machine
        raise DataError(f"{job.source.index.locators[row]}: {error}") from error
    except ImageError as error:
        return Problem(job.source.index.locators[row], "decode", str(error))
    return PackedImage(row, fitted, pixel_digest(decoded))


def _encode(pixels: Pixels, channels: int) -> bytes:
    if pixels.shape[2] != channels:
        pixels = np.repeat(pixels, channels, axis=2)
    return pixels.tobytes()


def _convert_to_colour(file: BinaryIO, decoded: Decoded, target: ImageFormat) -> None:
    """Convert the grey images in the file to three channels in place, from last to first."""
    if decoded.channels == 3:
        return
    decoded.channels = 3
    image_bytes = target.height * target.width
    for index in reversed(range(len(decoded.source_rows))):
        file.seek(index * image_bytes)
        grey = np.frombuffer(file.read(image_bytes), np.uint8)
        file.seek(index * image_bytes * 3)
        file.write(np.repeat(grey, 3).tobytes())
    file.seek(0, 2)
