"""Predictions as Arrow tables, in which Ray moves them between machines.

D features, K classes, n rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from onsight.inference.predictor import Prediction

NUMBER, PATH = "number", "path"  # of an input; its path is bytes, as file systems have it
_PLAIN = ("predicted", "probability", "problem", "out_of_distribution", "score")
_LISTS = ("probabilities", "features")


def to_table(numbers: Any, predictions: Iterable[Prediction], with_probabilities: bool) -> Any:
    """A table of predictions; numbers: the Arrow column of their inputs' numbers."""
    import pyarrow

    found = list(predictions)
    text, exact, numerals = pyarrow.string(), pyarrow.float64(), pyarrow.list_(pyarrow.float32())
    types = {"predicted": text, "probability": exact, "problem": text}
    types |= {"out_of_distribution": pyarrow.bool_(), "score": exact}
    columns = {
        name: pyarrow.array([getattr(one, name) for one in found], kind)
        for name, kind in types.items()
    }
    for name in _LISTS:
        kept = found if with_probabilities or name != "probabilities" else []
        lists = [getattr(one, name) for one in kept] or [None] * len(found)
        columns[name] = pyarrow.array(lists, numerals)
    return pyarrow.table({NUMBER: numbers, **columns})


def from_table(names: Sequence[str], table: Any) -> Iterator[Prediction]:
    """The predictions in a table; names: of their inputs."""
    plain = zip(*(table[name].to_pylist() for name in _PLAIN), strict=True)
    lists = zip(*(_arrays(table[name].combine_chunks()) for name in _LISTS), strict=True)
    for name, values, (probabilities, features) in zip(names, plain, lists, strict=True):
        predicted, probability, problem, out_of_distribution, score = values
        yield Prediction(
            name,
            predicted,
            probability,
            problem,
            probabilities,
            out_of_distribution,
            score,
            features,
        )


def _arrays(column: Any) -> Iterator[Any]:
    """A float32 array (D,) or (K,) for each row, None where there is none."""
    there = column.is_valid().to_pylist()
    if not any(there):
        return repeat(None, len(there))
    arrays = iter(column.flatten().to_numpy(zero_copy_only=False).reshape(sum(there), -1))
    return (np.array(next(arrays)) if is_there else None for is_there in there)
