"""Reading the pickled batches of CIFAR without running anything from them.

Pickle calls what it names. Here every name but the few that numpy arrays and bytes need
is refused, and those few are stand-ins that only remember what they are given. What a
pickle may ask of memory and time is bounded by a look at its opcodes beforehand.
"""

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class RefusedPickle(Exception):
    """The file asks for more than lists, texts and arrays of bytes, or is damaged."""


_MEMO_SLACK = 1000  # Python 2 counts from 1, and tools may thin a memo out

# Constants, lists, dictionaries, tuples, the memo, and what rebuilds an array.
_OPCODES = frozenset(
    [
        "PROTO",
        "FRAME",
        "STOP",
        "MARK",
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "EMPTY_LIST",
        "LIST",
        "APPEND",
        "APPENDS",
        "EMPTY_DICT",
        "DICT",
        "SETITEM",
        "SETITEMS",
        "EMPTY_TUPLE",
        "TUPLE",
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
        "PUT",
        "BINPUT",
        "LONG_BINPUT",
        "MEMOIZE",
        "GET",
        "BINGET",
        "LONG_BINGET",
        "GLOBAL",
        "STACK_GLOBAL",
        "REDUCE",
        "BUILD",
    ]
)


def load_plain(data: bytes) -> dict[str, Any]:
    """The dictionary in a pickle of dictionaries, lists, texts, numbers and byte arrays.

    Keys become text; arrays are `Array`. Raises RefusedPickle.
    """
    try:
        _check_opcodes(data)
        content = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    except RefusedPickle:
        raise
    except Exception as error:  # damaged pickles raise nearly anything
        raise RefusedPickle(f"damaged: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise RefusedPickle(f"a {type(content).__name__} instead of a dictionary")
    return {text(key): value for key, value in content.items()}


def text(value: object) -> str:
    """A text that Python 2 may have pickled as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _check_opcodes(data: bytes) -> None:
    """Raise RefusedPickle for opcodes out of the ordinary.

    A memo place that is far out makes the unpickler fill memory up to there, and a tuple
    that is used again and again inside others makes hashing take forever.
    """
    stored = 0
    tuples = set()
    before = ""
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name not in _OPCODES:
            raise RefusedPickle(f"it uses {name}, which no batch of pictures needs")
        if name.endswith(("PUT", "MEMOIZE")):
            place = stored if argument is None else argument
            if place > 2 * stored + _MEMO_SLACK:
                raise RefusedPickle(f"its memo jumps to place {place}")
            if "TUPLE" in before:
                tuples.add(place)
            stored += 1
        elif name.endswith("GET") and argument in tuples:
            raise RefusedPickle("it uses a tuple twice")
        before = name


class Array:
    """What a pickle says of a numpy array."""

    def __init__(self) -> None:
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def values(self) -> NDArray[np.uint8]:
        """The array, if it is one of bytes. Raises RefusedPickle."""
        try:
            _, shape, kind, by_columns, data = self._state
            if not isinstance(kind, _Kind) or kind.code not in ("u1", b"u1") or by_columns:
                raise RefusedPickle("an array of something else than bytes in row order")
            return np.frombuffer(data, np.uint8).reshape(shape)
        except (ValueError, TypeError) as error:
            raise RefusedPickle(f"a damaged array: {error}") from error


class _Kind:
    """What a pickle says of a numpy dtype."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass  # byte order and alignment say nothing about bytes


def _reconstruct(*_: object) -> Array:
    return Array()


def _encode(characters: str, encoding: str) -> bytes:
    """How pickle's older protocols write bytes: as Latin-1 text."""
    if encoding != "latin1":
        raise RefusedPickle(f"bytes written as {encoding}")
    return characters.encode("latin1")


# Arrays are made by _reconstruct; the class itself only stands as its argument.
_STAND_INS: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        stand_in = _STAND_INS.get((module, name))
        if stand_in is None:
            raise RefusedPickle(f"it asks for {module}.{name}, which no batch of pictures needs")
        return stand_in

    def persistent_load(self, reference: object) -> Any:
        raise RefusedPickle(f"it refers to something outside of it: {reference!r}")
