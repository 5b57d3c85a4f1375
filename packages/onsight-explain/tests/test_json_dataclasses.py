"""Dataclasses as JSON and back, against JSON written by hand."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pytest

from onsight_explain.json_dataclasses import from_json, to_json, to_plain


class Pair(NamedTuple):
    one: int
    two: str = ""


@dataclass(frozen=True)
class Inner:
    file: str
    end: tuple[int, int] | None = None


@dataclass
class Outer:
    kind: Literal["a", "b"]
    seconds: float
    path: Path | None = None
    inner: Inner | None = None
    many: list[Inner] = field(default_factory=list)
    changes: dict[str, bool | int | str | tuple[int, ...]] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    shares: dict[str, float] | None = None


FULL = Outer(
    "a",
    2.0,
    Path("/home/user/träin.py"),
    Inner("x", (1, 2)),
    [Inner("y"), Inner("z", (3, 4))],
    {"on": True, "count": 1, "name": "1", "lines": (5, 6)},
    [Pair(1, "p")],
    {"data": 0.5},
)
PLAIN = {
    "kind": "a",
    "seconds": 2.0,
    "path": "/home/user/träin.py",
    "inner": {"file": "x", "end": [1, 2]},
    "many": [{"file": "y", "end": None}, {"file": "z", "end": [3, 4]}],
    "changes": {"on": True, "count": 1, "name": "1", "lines": [5, 6]},
    "pairs": [[1, "p"]],
    "shares": {"data": 0.5},
}


def test_everything_survives_with_its_type():
    assert to_plain(FULL) == json.loads(to_json(FULL)) == PLAIN
    found = from_json(Outer, json.dumps(PLAIN))
    assert found == FULL
    assert type(found.pairs[0]) is Pair
    assert [type(value) for value in found.changes.values()] == [bool, int, str, tuple]
    assert hash(found.inner) == hash(Inner("x", (1, 2)))


def test_defaults_fill_what_is_missing_and_unknown_keys_are_ignored():
    found = from_json(Outer, b'{"kind": "b", "seconds": 3, "later": [1]}')
    assert found == Outer("b", 3.0)
    assert type(found.seconds) is float


def test_losses_that_are_no_numbers_and_numpys_integers_survive():
    text = to_json(Outer("a", math.nan, shares={"data": math.inf}, changes={"count": np.int64(7)}))
    found = from_json(Outer, text)
    assert math.isnan(found.seconds)
    assert (found.shares, found.changes) == ({"data": math.inf}, {"count": 7})


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "c"},
        {"seconds": "2"},
        {"seconds": True},
        {"seconds": None},
        {"path": 1},
        {"inner": []},
        {"inner": {"file": "x", "end": [1]}},
        {"inner": {"file": "x", "end": [1, 2.5]}},
        {"inner": {"file": "x", "end": [1, True]}},
        {"many": {}},
        {"changes": {"count": 1.5}},
        {"shares": {"data": "0.5"}},
        {"pairs": 1},
    ],
)
def test_values_of_another_type_are_refused(wrong):
    with pytest.raises(ValueError, match="of type|of none of the types"):
        from_json(Outer, json.dumps(PLAIN | wrong))


def test_a_missing_value_is_refused():
    with pytest.raises(TypeError, match="seconds"):
        from_json(Outer, '{"kind": "a"}')
