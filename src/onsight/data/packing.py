"""Decoding a whole source in threads into one file of pixels.

Decoders release Python's lock, so threads use every core without copies between processes.
Images are written in the source's order, whichever thread finishes first.
"""

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import BinaryIO, NamedTuple

import numpy as np

from onsight.data.decode import decode
from onsight.data.fit import ImageFormat, fit
from onsight.data.index import Problem
from onsight.data.pillow_pixels import Pixels
from onsight.data.shards.order import ShardPrefetcher
from onsight.data.sources.source import DRAW_STAGE, Source
from onsight.data.split import DIGEST_BYTES
from onsight.errors import DataError, ImageError

NO_TIME = "no time to decode it"
_CHUNK = 64  # images per task: large enough to hide the pool's overhead, small for progress
_CHUNK_BYTES = 16_000_000  # of large images: four tasks for each thread wait in memory

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Job:
    """What to decode, and how.

    target.channels of 0 means 1 if every image is stored grey, else 3; strict: raise
    DataError at the first image that cannot be used; progress: called with counts of images;
    deadline: on the monotonic clock, after which images are left out, but none of the first
    `least` rows.
    """

    source: Source
    target: ImageFormat
    strict: bool = False
    threads: int = 1
    progress: Progress = lambda done: None
    deadline: float = math.inf
    least: int = 0


class Image(NamedTuple):
    """A decoded image: its row in the source, its fitted pixels and its digest."""

    source_row: int
    pixels: Pixels
    digest: bytes


@dataclass
class Decoded:
    """The outcome of decoding a source, except the pixels, which are in the file."""

    channels: int
    source_rows: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def decode_all(file: BinaryIO, job: Job) -> Decoded:
    """Write every usable image's pixels to a file; list the others with their reasons.

    The file holds one channel until the first colour image, unless target.channels says
    otherwise.
    """
    target = job.target
    decoded = Decoded(channels=target.channels or 1)
    for chunk in _until_first_missed(job):
        images = [item for item in chunk if isinstance(item, Image)]
        problems = [item for item in chunk if isinstance(item, Problem)]
        faults = [problem for problem in problems if problem.stage != DRAW_STAGE]
        if job.strict and faults:
            raise DataError(f"{faults[0].path}: {faults[0].reason}")
        decoded.problems += problems
        if target.channels == 0 and any(image.pixels.shape[2] == 3 for image in images):
            _widen(file, decoded, target)
        file.write(b"".join(_to_file(one.pixels, decoded.channels) for one in images))
        decoded.source_rows += [image.source_row for image in images]
        decoded.digests += [image.digest for image in images]
        job.progress(len(chunk))
    return decoded


def digest_of(pixels: Pixels) -> bytes:
    """A digest of a decoded image, the same for grey in one channel and in three."""
    if pixels.shape[2] == 3 and _has_equal_channels(pixels):
        pixels = pixels[:, :, :1]
    digest = hashlib.sha256(repr(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()[:DIGEST_BYTES]


def prepare_image(content: bytes | Pixels, target: ImageFormat) -> tuple[Pixels, Pixels]:
    """(decoded, fitted) pixels of encoded bytes or plain pixels. Raises ImageError.

    target.channels of 0 keeps the image's own.
    """
    if isinstance(content, bytes):
        grey = target.channels == 1
        pixels = decode(content, target.background, target.pixel_limit, target.shown, grey=grey)
    else:
        pixels = content
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
            raise ImageError("pixels must be uint8 (H, W, 1) or (H, W, 3)")
    if target.channels == 0:
        target = replace(target, channels=pixels.shape[2])
    return pixels, fit(pixels, target)


def _until_first_missed(job: Job) -> Iterator[list[Image | Problem]]:
    """Decoded chunks in which nothing follows an image that there was no time for.

    So the images decoded are the first of the source, as if no more had been asked for.
    """
    is_over = False
    for chunk in _decoded_chunks(job):
        kept: list[Image | Problem] = []
        for item in chunk:
            is_over |= isinstance(item, Problem) and item.reason == NO_TIME
            kept.append(_missed(job, item) if is_over else item)
        yield kept


def _missed(job: Job, item: Image | Problem) -> Problem:
    if isinstance(item, Problem):
        return Problem(item.path, DRAW_STAGE, NO_TIME)
    return Problem(job.source.index.locators[item.source_row], DRAW_STAGE, NO_TIME)


def _decoded_chunks(job: Job) -> Iterator[list[Image | Problem]]:
    """Chunks of decoded images in order, with a bounded number in progress."""
    waiting: deque[Future[list[Image | Problem]]] = deque()
    count = len(job.source.index)
    each = job.target.height * job.target.width * (job.target.channels or 3)
    size = max(1, min(_CHUNK, _CHUNK_BYTES // each))
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


def _decode_rows(job: Job, rows: range) -> list[Image | Problem]:
    return [_decode_row(job, row) for row in rows]


def _decode_row(job: Job, row: int) -> Image | Problem:
    locators = job.source.index.locators
    if row >= job.least and time.monotonic() > job.deadline:
        return Problem(locators[row], DRAW_STAGE, NO_TIME)
    try:
        decoded, fitted = prepare_image(job.source.read(row), job.target)
    except ImageError as error:
        return Problem(locators[row], "decode", str(error))
    return Image(row, fitted, digest_of(decoded))


def _has_equal_channels(pixels: Pixels) -> bool:
    """Whether a colour image has only greys; a few pixels are enough to rule most out."""
    for part in (pixels[:: max(1, len(pixels) // 4), :: max(1, pixels.shape[1] // 4)], pixels):
        red, green, blue = part[..., 0], part[..., 1], part[..., 2]
        if not (np.array_equal(red, green) and np.array_equal(red, blue)):
            return False
    return True


def _to_file(pixels: Pixels, channels: int) -> bytes:
    if pixels.shape[2] != channels:
        pixels = np.repeat(pixels, channels, axis=2)
    return pixels.tobytes()


def _widen(file: BinaryIO, decoded: Decoded, target: ImageFormat) -> None:
    """Turn the grey images written so far into three channels in place, from the last on."""
    if decoded.channels == 3:
        return
    decoded.channels = 3
    image_bytes = target.height * target.width
    for number in reversed(range(len(decoded.source_rows))):
        file.seek(number * image_bytes)
        grey = np.frombuffer(file.read(image_bytes), np.uint8)
        file.seek(number * image_bytes * 3)
        file.write(np.repeat(grey, 3).tobytes())
    file.seek(0, 2)
