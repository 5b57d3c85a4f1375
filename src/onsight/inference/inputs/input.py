"""An image to predict that is not read yet."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from onsight.data.sources.read_file import read_regular_file
from onsight.errors import ImageError


class Input(NamedTuple):
    """What an image's row is called, and how to read its bytes, which may raise ImageError.

    file: whether the name is the path of a file.
    """

    name: str
    read: Callable[[], bytes]
    file: bool = True


def file_input(path: str) -> Input:
    """A file, which need not exist."""
    return Input(path, partial(read_regular_file, path))


def unusable_input(name: str, reason: str) -> Input:
    """An input of which it is known that it cannot be used."""

    def refuse() -> bytes:
        raise ImageError(reason)

    return Input(name, refuse, file=False)
