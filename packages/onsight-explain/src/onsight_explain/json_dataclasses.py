"""Convert dataclasses to JSON and back, for messages between `explain` and its processes."""

import json
import operator
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import repeat
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_types_of = cache(get_type_hints)


def to_json(value: Any) -> str:
    """Convert a dataclass, with the dataclasses inside it, to JSON."""
    return json.dumps(value, default=_plain, separators=(",", ":"))


def to_plain(value: Any) -> Any:
    """Convert a dataclass, with the dataclasses inside it, to dicts, lists and plain values."""
    return json.loads(to_json(value))


def from_json(kind: type[T], text: str | bytes) -> T:
    """Convert JSON to a dataclass. Unknown keys are ignored; NamedTuples are not checked.

    Raises ValueError for a value that is not of its field's type, TypeError if one is missing.
    """
    result: T = _read(kind, json.loads(text))
    return result


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return str(value) if isinstance(value, Path) else operator.index(value)  # NumPy's integers


def _read(kind: Any, value: Any) -> Any:
    """Convert a value from JSON to a type."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind in (bool, int, float, str, NoneType) and type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if origin is Literal and value in inside:
        return value
    if origin in (Union, UnionType):
        return _first_of(inside, value)
    if isinstance(value, dict) and isinstance(kind, type) and is_dataclass(kind):
        types = _types_of(kind)
        return kind(**{name: _read(types[name], value[name]) for name in types if name in value})
    if isinstance(value, dict) and origin is dict:
        return {key: _read(inside[1], item) for key, item in value.items()}
    if isinstance(value, list) and origin is list:
        return [_read(inside[0], item) for item in value]
    if isinstance(value, list) and origin is tuple:
        is_open = inside[-1] is Ellipsis
        kinds = repeat(inside[0], len(value)) if is_open else inside
        return tuple(_read(*pair) for pair in zip(kinds, value, strict=True))
    if isinstance(value, list) and hasattr(kind, "_fields"):
        return kind(*value)
    raise ValueError(f"{value!r} is not of type {kind}")


def _first_of(kinds: tuple[Any, ...], value: Any) -> Any:
    """Convert a value to the first of these types that accepts it."""
    for kind in kinds:
        try:
            return _read(kind, value)
        except (ValueError, TypeError):
            continue
    raise ValueError(f"{value!r} is of none of the types {kinds}")
