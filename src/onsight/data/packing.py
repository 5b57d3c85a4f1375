"""Decoding a whole source in threads into one file of pixels.

Decoders release Python's lock, so threads use every core without copies between processes.
Images are written in the source's order, whichever thread finishes first.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import numpy as np

from onsight.data.decode import pixel_digest, prepare_image
from onsight.data.fit import ImageFormat
from onsight.data.index import Problem
from onsight.data.pixels import Pixels
from onsight.data.shards.order import ShardPrefetcher
from onsight.data.sources.source import DRAW_STAGE, Source
from onsight.errors import DataError, ImageError

NO_TIME = "no time to decode it"

_CHUNK = 64  # images per task: large enough to hide the pool's overhead, small for progress
_CHUNK_BYTES = 16_000_000  # bytes per task of large images; four tasks per thread wait in memory

Progress = Callable[[int], None]  # called with a number of images


@dataclass(frozen=True)
class PackJob:
    """The images to decode, and their format."""

    source: Source
    target: ImageFormat  # channels of 0 mean 1 if every image is stored grey, else 3
    strict: bool = False  # raise DataError at the first image that cannot be used
    threads: int = 1
    progress: Progress = lambda done: None
    deadline: float = math.inf  # monotonic seconds; later images are skipped
    required: int = 0  # first rows of the source, which are decoded even after the deadline


class PackedImage(NamedTuple):
    """A decoded image on its way into the file."""

    source_row: int
    pixels: Pixels  # fitted to the target
    digest: bytes


@dataclass
class Decoded:
    """The outcome of decoding a source, except the pixels, which are in the file."""

    channels: int
    source_rows: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def decode_all(file: BinaryIO, job: PackJob) -> Decoded:
    """Write every usable image's pixels to a file; list the others with their reasons.

    Unless target.channels demands otherwise, the file holds one channel until the first colour
    image, and three from then on.
    """
    target = job.target
    decoded = Decoded(channels=target.channels or 1)
    for chunk in _until_first_missed(job):
        images = [item for item in chunk if isinstance(item, PackedImage)]
        problems = [item for item in chunk if isinstance(item, Problem)]
        faults = [problem for problem in problems if problem.stage != DRAW_STAGE]
        if job.strict and faults:
            raise DataError(f"{faults[0].path}: {faults[0].reason}")
        decoded.problems += problems
        if target.channels == 0 and any(image.pixels.shape[2] == 3 for image in images):
            _widen(file, decoded, target)
        file.write(b"".join(_encode(image.pixels, decoded.channels) for image in images))
        decoded.source_rows += [image.source_row for image in images]
        decoded.digests += [image.digest for image in images]
        job.progress(len(chunk))
    return decoded


def _until_first_missed(job: PackJob) -> Iterator[list[PackedImage | Problem]]:
    """Yield decoded chunks in which nothing follows an image that there was no time for.

    The images decoded are thus the first of the source, as if no more had been requested.
    """
    is_over = False
    for chunk in _decoded_chunks(job):
        usable: list[PackedImage | Problem] = []
        for item in chunk:
            is_over |= isinstance(item, Problem) and item.reason == NO_TIME
            usable.append(_missed(job, item) if is_over else item)
        yield usable


def _missed(job: PackJob, item: PackedImage | Problem) -> Problem:
    if isinstance(item, Problem):
        return Problem(item.path, DRAW_STAGE, NO_TIME)
    return Problem(job.source.index.locators[item.source_row], DRAW_STAGE, NO_TIME)


def _decoded_chunks(job: PackJob) -> Iterator[list[PackedImage | Problem]]:
    """Yield chunks of decoded images in order, with a bounded number in progress."""
    waiting: deque[Future[list[PackedImage | Problem]]] = deque()
    count = len(job.source.index)
    image_bytes = job.target.height * job.target.width * (job.target.channels or 3)
    size = max(1, min(_CHUNK, _CHUNK_BYTES // image_bytes))
    shards = job.source.shards
    ahead = ShardPrefetcher(shards.part_of_row, shards.prefetch) if shards else None
    with ThreadPoolExecutor(job.threads, thread_name_prefix="decode") as pool:
        try:
            for start in range(0, count, size):
                rows = range(start, min(start + size, count))
                if ahead:
                    ahead.reach(rows.stop)
                waiting.append(pool.submit(_decode_rows, job, rows))
                if len(waiting) > 4 * job.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _decode_rows(job: PackJob, rows: range) -> list[PackedImage | Problem]:
    return [_decode_row(job, row) for row in rows]


def _decode_row(job: PackJob, row: int) -> PackedImage | Problem:
    locators = job.source.index.locators
    if row >= job.required and time.monotonic() > job.deadline:
        return Problem(locators[row], DRAW_STAGE, NO_TIME)
    try:
        decoded, fitted = prepare_image(job.source.read(row), job.target)
    except ImageError as error:
        return Problem(locators[row], "decode", str(error))
    return PackedImage(row, fitted, pixel_digest(decoded))


def _encode(pixels: Pixels, channels: int) -> bytes:
    if pixels.shape[2] != channels:
        pixels = np.repeat(pixels, channels, axis=2)
    return pixels.tobytes()


def _widen(file: BinaryIO, decoded: Decoded, target: ImageFormat) -> None:
    """Turn the grey images written so far into three channels, in place, starting with the last."""
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
