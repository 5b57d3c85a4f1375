"""Read files that anybody may have written: regular ones only, and within limits.

Whatever reads JSON, XML, CSV or text from outside does it here, so that no file makes it wait, and
none takes more memory than its size explains. Errors name the file and what is wrong in it.
"""

import codecs
import csv
import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from onsight.errors import DataError
from onsight.limits import JSON_DEPTH, LINE_CHARACTERS, TEXT_FILE_BYTES

# O_NONBLOCK: opening a FIFO must not wait for its other end.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_LARGEST_FLOAT = 10**308

ObjectHook = Callable[[dict[str, Any]], Any]


def open_regular(path: str | Path) -> int:
    """Return a descriptor for reading a regular file. Raises OSError for any other kind, too."""
    try:
        descriptor = os.open(path, _FLAGS)
    except ValueError as error:  # a NUL or a lone surrogate
        raise OSError(errno.EINVAL, "no file can have this name") from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file. Raises DataError."""
    try:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > TEXT_FILE_BYTES:
                raise DataError(
                    f"{path} has {size / 1e9:.1f} GB; such files are read up to "
                    f"{TEXT_FILE_BYTES / 1e9:g} GB"
                )
            return file.read(size)
    except OSError as error:
        raise _unreadable(path, error) from error


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the content of a file of UTF-8 text. Raises DataError."""
    try:
        return read_bytes(path).decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from error


def read_lines(path: Path, errors: str = "strict", newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a file of UTF-8 text. Raises DataError."""
    try:
        with open(open_regular(path), encoding="utf-8-sig", errors=errors, newline=newline) as file:
            for number, line in enumerate(iter(lambda: file.readline(LINE_CHARACTERS), ""), 1):
                if len(line) == LINE_CHARACTERS:
                    raise DataError(f"{path}, line {number}: over {LINE_CHARACTERS:,} characters")
                if "\0" in line:
                    raise DataError(f"{path}, line {number}: has a NUL, so it is not text")
                yield line
    except UnicodeDecodeError as error:
        raise DataError(f"{path}{_locate_foreign_text(path)}; save it as UTF-8") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def read_csv(path: Path, errors: str = "strict") -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a CSV file with the number of its line; empty ones are skipped.

    The delimiter is a comma, semicolon or tab, whichever the first line has most. Raises DataError.
    """
    lines = read_lines(path, errors, newline="")
    first = next(lines, "")
    characters = 0  # of the row so far: quoted cells can contain line breaks

    def count_characters() -> Iterator[str]:
        nonlocal characters
        for line in chain([first], lines):
            characters += len(line)
            if characters > LINE_CHARACTERS:
                where = f"{path}, line {rows.line_num + 1}"
                raise DataError(f"{where}: a row of over {LINE_CHARACTERS:,} characters")
            yield line

    rows = csv.reader(count_characters(), delimiter=max(",;\t", key=first.count), strict=True)
    try:
        for cells in rows:
            characters = 0
            if cells:
                yield rows.line_num, cells
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: {error}") from error


def read_json(path: Path, errors: str = "strict") -> Any:
    """Return the content of a JSON file. Raises DataError."""
    try:
        return parse_json(read_bytes(path), errors)
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error


def parse_json(
    text: str | bytes, errors: str = "strict", object_hook: ObjectHook | None = None
) -> Any:
    """Return the value of JSON. Raises ValueError, also for one that check_value refuses.

    errors: "surrogateescape" for JSON with paths that are not UTF-8.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), errors)
        value = json.loads(text, object_hook=object_hook)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    check_value(value, errors)
    return value


def check_value(value: object, errors: str = "strict") -> None:
    """Raise ValueError, with the key, for what JSON or TOML can hold, but little else can.

    That is text with NUL or lone surrogates, whole numbers over 1e308, and very deep nesting.
    """
    level: list[tuple[str, object]] = [("it", value)]
    for _ in range(JSON_DEPTH):
        for key in {key for key, _ in level}:
            _check_text(key, key, errors)
        for key, item in level:
            if isinstance(item, str):
                _check_text(key, item, errors)
            elif _is_huge(item):
                raise ValueError(f"{key} has over 308 digits")
        level = [
            (name, child)
            for key, item in level
            for name, child in _list_children(key, item)
            if isinstance(child, (dict, list, str)) or _is_huge(child)
        ]
        if not level:
            return
    raise ValueError(f"it is nested over {JSON_DEPTH} levels deep")


def read_xml(path: Path) -> Element:
    """Return an XML file's root. Raises DataError, also for document types: entities can grow."""
    data = read_bytes(path)
    ascii_text = data.replace(b"\0", b"")  # of UTF-16 and UTF-32 too
    if b"<!DOCTYPE" in ascii_text or b"<!ENTITY" in ascii_text:
        raise DataError(f"{path} declares a document type, which annotations do not need")
    try:
        return ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an encoding
        raise DataError(f"{path} is not valid XML: {error}") from error


def _list_children(key: str, value: object) -> Iterable[tuple[str, object]]:
    """Return what a JSON object or array contains, with keys: that of an array for its items."""
    if isinstance(value, dict):
        return value.items()
    if not isinstance(value, list):
        return ()
    kinds = set(map(type, value))
    if kinds == {float}:  # such as a polygon
        return ()
    if kinds == {int}:  # such as a row of a confusion matrix
        value = [min(value), max(value)]
    return zip(repeat(key), value, strict=False)


def _is_huge(value: object) -> bool:
    return isinstance(value, int) and abs(value) > _LARGEST_FLOAT


def _check_text(key: str, text: str, errors: str) -> None:
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError as error:
        raise ValueError(f"{key} has a lone surrogate: {text[:80]!a}") from error
    if "\0" in text:
        raise ValueError(f"{key} has a NUL: {text[:80]!r}")


def _locate_foreign_text(path: Path) -> str:
    """Return the first place that is not UTF-8, to continue a message that names the file."""
    with open(open_regular(path), "rb") as file:
        for line, content in enumerate(iter(lambda: file.readline(4 * LINE_CHARACTERS), b""), 1):
            try:
                content.decode()
            except UnicodeDecodeError as error:
                if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    return " is UTF-16 text"
                byte, position = content[error.start], error.start + 1
                return f", line {line}: byte 0x{byte:02x} at position {position} is not UTF-8 text"
    return " is not UTF-8 text"


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read: {error.strerror or error}")
