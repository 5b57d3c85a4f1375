"""Read the pickled batches of CIFAR without executing anything from them.

Unpickling calls any function that a pickle names. Here every name is refused except the few that
numpy arrays and bytes need; stand-ins that only record their arguments replace these names. The
opcodes are checked beforehand, which bounds the memory and time that a pickle can use.
"""

import io
import pickle
import pickletools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsight.limits import PICKLED_ARRAYS, PICKLED_CONTAINERS, PICKLED_KEYS


class RefusedPickle(Exception):
    """The file contains more than lists, strings and arrays of bytes, or is damaged."""


_MEMO_SLACK = 1000  # unused memo slots: Python 2 counts from 1, tools may leave gaps

# Opcodes for constants, lists, dictionaries, tuples, the memo and rebuilding arrays.
_OPCODES = frozenset((
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1",
    "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM",
    "SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "PUT", "BINPUT",
    "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE",
    "BUILD",
))  # fmt: skip


def load_plain(data: bytes) -> dict[str, Any]:
    """Return the dictionary in a pickle of dictionaries, lists, strings, numbers and byte arrays.

    Keys become strings, arrays become `PickledArray`. Raises RefusedPickle.
    """
    try:
        _check_opcodes(data)
        content = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    except RefusedPickle:
        raise
    except Exception as error:  # damaged pickles raise almost anything
        raise RefusedPickle(f"damaged: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise RefusedPickle(f"a {type(content).__name__} instead of a dictionary")
    return {decode_text(key): value for key, value in content.items()}


def decode_text(value: object) -> str:
    """Return a string, which Python 2 may have pickled as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _check_opcodes(data: bytes) -> None:
    """Raise RefusedPickle for unusual opcodes, and for unbounded use of memory or time."""
    stored = 0
    tuples = set()  # memo slots that contain tuples
    previous = ""
    counts: Counter[str] = Counter()
    depth, marks = 0, list[int]()  # size and mark positions of the unpickler's stack
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name not in _OPCODES:
            raise RefusedPickle(f"it uses {name}, which no batch of images needs")
        if name.endswith(("PUT", "MEMOIZE")):
            slot = stored if argument is None else argument
            if slot > 2 * stored + _MEMO_SLACK:  # the memo's memory is allocated up to this slot
                raise RefusedPickle(f"its memo jumps to index {slot}")
            if "TUPLE" in previous:
                tuples.add(slot)
            stored += 1
        elif name.endswith("GET") and argument in tuples:  # nested tuples can hash forever
            raise RefusedPickle("it uses a tuple twice")
        start = marks.pop() if pickletools.markobject in opcode.stack_before and marks else depth
        _count(counts, name, depth - start)
        depth = _depth_after(opcode, depth, start)
        if name == "MARK":
            marks.append(depth)
        previous = name


def _count(counts: Counter[str], name: str, items: int) -> None:
    """Count an opcode's new objects. items: number of stack items popped, down to its mark."""
    created = {"REDUCE": "rebuilt", "SETITEM": "keys"}.get(name, "")
    if name.startswith(("TUPLE", "EMPTY_", "LIST", "DICT")):
        created = "containers"
    counts[created] += 1
    if name in ("SETITEMS", "DICT"):
        counts["keys"] += items // 2
    limits = {"rebuilt": PICKLED_ARRAYS, "containers": PICKLED_CONTAINERS, "keys": PICKLED_KEYS}
    for what, limit in limits.items():
        if counts[what] > limit:
            raise RefusedPickle(f"over {limit:,} {what}")


def _depth_after(opcode: pickletools.OpcodeInfo, depth: int, start: int) -> int:
    """Return the depth of the stack after an opcode. start: the depth at the opcode's mark."""
    popped = opcode.stack_before
    if pickletools.markobject in popped:
        return start - popped.index(pickletools.markobject) + len(opcode.stack_after)
    pushed = 0 if opcode.name == "MARK" else len(opcode.stack_after)  # marks have a separate stack
    return depth - len(popped) + pushed


class PickledArray:
    """Stand-in for a numpy array, which records its pickled state."""

    def __init__(self) -> None:
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def values(self) -> NDArray[np.uint8]:
        """Return the array. Raises RefusedPickle unless it holds bytes in row order."""
        try:
            _, shape, dtype, by_columns, data = self._state
            if (
                not isinstance(dtype, _PickledDtype)
                or dtype.code not in ("u1", b"u1")
                or by_columns
            ):
                raise RefusedPickle("an array of something other than bytes in row order")
            return np.frombuffer(data, np.uint8).reshape(shape)
        except (ValueError, TypeError) as error:
            raise RefusedPickle(f"a damaged array: {error}") from error


class _PickledDtype:
    """Stand-in for a numpy dtype."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass  # byte order and alignment do not matter for bytes


def _reconstruct(*_: object) -> PickledArray:
    return PickledArray()


def _encode(characters: str, encoding: str) -> bytes:
    """Stand-in for _codecs.encode: older pickle protocols write bytes as Latin-1 text."""
    if encoding != "latin1":
        raise RefusedPickle(f"bytes written as {encoding}")
    return characters.encode("latin1")


# _reconstruct makes the arrays; the class itself appears only as its argument.
_STAND_INS: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _PickledDtype,
    ("_codecs", "encode"): _encode,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        stand_in = _STAND_INS.get((module, name))
        if stand_in is None:
            raise RefusedPickle(f"it imports {module}.{name}, which no batch of images needs")
        return stand_in

    def persistent_load(self, reference: object) -> Any:
        raise RefusedPickle(f"it refers to something outside the file: {reference!r}")
