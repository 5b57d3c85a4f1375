"""Images to predict: the forms they can have, and decoding them in threads ahead of the model."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from io import IOBase
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, Union, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from onsight.data.decode import prepare_image
from onsight.data.fit import ImageFormat
from onsight.data.pixels import ACCEPTED, Pixels, decode_image, is_tensor, read_array
from onsight.data.sources.read_file import read_regular_file
from onsight.errors import DataError, ImageError
from onsight_explain.threads import usable_cores

if TYPE_CHECKING:
    from torch import Tensor

_CHUNK = 8  # images per task: large enough to hide the pool's overhead, small enough to balance
_SPARE_TASKS = 4  # tasks per thread, beyond those of the next batch, so that no thread is idle
_MAX_UNUSABLE = 16  # a batch ends after this many times its size of inputs, usable or not
_LOADING = Lock()  # Pillow loads an image in place, and the same image may be passed twice


class Input(NamedTuple):
    """An image that has not been read yet."""

    name: str  # identifies its row in the output: a path, or a path within an archive
    read: Callable[[], bytes]  # raises ImageError
    file: bool = True  # whether the name is the path of a file


ImageLike = Union[str, Path, bytes, Image.Image, NDArray[Any], "Tensor", Input]


class PreparedImage(NamedTuple):
    """An image decoded and resized for the model, or the reason why it cannot be used."""

    image: ImageLike
    pixels: Pixels | None  # uint8 (H, W, C)
    problem: str | None


def file_input(path: str) -> Input:
    """Return the input for a file, which may turn out not to exist when it is read."""
    return Input(path, partial(read_regular_file, path))


def walk(folder: str) -> Iterator[str]:
    """Yield every file below a folder, sorted by name; hidden ones are skipped.

    Links are followed, but each folder is visited once. A folder that cannot be listed is yielded
    itself: reading it tells why.
    """
    visited: set[str] = set()
    unlisted: list[str] = []
    steps = os.walk(folder, onerror=lambda error: unlisted.append(error.filename), followlinks=True)
    for parent, folders, files in steps:
        yield from unlisted
        unlisted.clear()
        real_path = os.path.realpath(parent)
        if real_path in visited:  # a link that leads back
            folders.clear()
            continue
        visited.add(real_path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield os.path.join(parent, name)
    yield from unlisted


def no_inputs() -> DataError:
    """Return the error for an empty list of inputs."""
    return DataError("no input images found: name files, or folders that contain some")


def is_single_image(images: ImageLike | Iterable[ImageLike]) -> bool:
    """Return True for one image, False for a collection of images or a folder."""
    if _is_folder(images):
        return False
    if is_tensor(images):
        return images.ndim < 4
    if isinstance(images, np.ndarray):
        return images.ndim < 4 and images.dtype.kind not in "OUS"  # an array of paths
    # Those that hold bytes but are no `bytes` are refused as a whole, not byte by byte.
    atoms = (str, bytes, bytearray, memoryview, IOBase, Input)
    return isinstance(images, atoms) or not isinstance(images, Iterable)


def as_images(images: ImageLike | Iterable[ImageLike]) -> Iterator[ImageLike]:
    """Yield a single image or those of a collection, and the files in place of a folder.

    Raises DataError for a folder without files.
    """
    is_one = is_single_image(images) or _is_folder(images)
    for image in cast(Iterable[ImageLike], [images] if is_one else images):
        if not _is_folder(image):
            yield image
            continue
        path = None
        for path in walk(os.fspath(image)):
            yield path
        if path is None:
            raise no_inputs()


def image_name(image: ImageLike) -> str:
    """Return the path of an image, or `(in memory)` if it has none."""
    if isinstance(image, Input):
        return image.name
    return os.fspath(image) if isinstance(image, (str, Path)) else "(in memory)"


def read_image(image: ImageLike, target: ImageFormat) -> Pixels:
    """Return the model's input: uint8 (H, W, C). Raises ImageError."""
    content: object = image
    if isinstance(image, Input):
        content = image.read()
    elif isinstance(image, (str, Path)):
        content = read_regular_file(os.fspath(image))
    elif isinstance(image, Image.Image):
        with _LOADING:
            content = decode_image(image, target.background, target.pixel_limit)
    elif isinstance(image, np.ndarray) or is_tensor(image):
        content = pixels = read_array(image)
        if pixels.shape[2] == 4:
            content = decode_image(Image.fromarray(pixels), target.background, pixels.size)
    if not isinstance(content, (bytes, np.ndarray)):
        raise ImageError(f"a {type(image).__name__} is not an image: {ACCEPTED}")
    return prepare_image(content, target)[1]


def prepare_batches(
    images: Iterable[ImageLike], read: Callable[[ImageLike], Pixels], batch_size: int
) -> Iterator[list[PreparedImage]]:
    """Decode images on all cores, about one batch ahead, and yield them in batches, in order.

    A batch has batch_size usable images, and the unusable ones between them. read raises
    ImageError for an image that cannot be used.
    """
    batch: list[PreparedImage] = []
    usable = 0
    for prepared in _prepare_in_order(images, read, batch_size):
        batch.append(prepared)
        usable += prepared.problem is None
        if is_batch_full(usable, len(batch), batch_size):
            yield batch
            batch, usable = [], 0
    if batch:
        yield batch


def is_batch_full(usable: int, inputs: int, batch_size: int) -> bool:
    """Return whether a batch with these numbers of usable images and inputs is complete.

    Resuming relies on it: rows are continued at the end of a batch.
    """
    return usable == batch_size or inputs == _MAX_UNUSABLE * batch_size


def _prepare_in_order(
    images: Iterable[ImageLike], read: Callable[[ImageLike], Pixels], batch_size: int
) -> Iterator[PreparedImage]:
    """Yield each image in order while a bounded number of later ones is being decoded."""
    pending: deque[Future[list[PreparedImage]]] = deque()
    threads = usable_cores()
    max_pending = -(-batch_size // _CHUNK) + _SPARE_TASKS * threads
    pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
    try:
        iterator = iter(images)
        while chunk := list(islice(iterator, _CHUNK)):
            pending.append(pool.submit(_prepare_chunk, read, chunk))
            if len(pending) > max_pending:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _is_folder(image: object) -> TypeGuard[str | Path]:
    return isinstance(image, (str, Path)) and os.path.isdir(image)


def _prepare_chunk(
    read: Callable[[ImageLike], Pixels], images: list[ImageLike]
) -> list[PreparedImage]:
    prepared = []
    for image in images:
        try:
            prepared.append(PreparedImage(image, read(image), None))
        except ImageError as error:  # stored as text: the traceback would hold the image's bytes
            prepared.append(PreparedImage(image, None, str(error)))
    return prepared
