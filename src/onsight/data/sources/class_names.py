"""Class names that a person would take for the same."""

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onsight.errors import DataError


def refuse_alike_classes(classes: Sequence[str], labels: NDArray[np.int32]) -> None:
    """Raise DataError for two classes that differ only by case, spaces or Unicode form.

    Names of one character may: in data of letters, case is what is to be learned. labels: int32
    (n,), to count the images of both.
    """
    first: dict[str, int] = {}
    for number, name in enumerate(classes):
        if len(name) == 1:
            continue
        other = first.setdefault(_plain(name), number)
        if other != number:
            pair = [f"{classes[one]!r} ({_count(labels, one)})" for one in (other, number)]
            raise DataError(
                f"the classes {pair[0]} and {pair[1]} differ only by case, spaces or Unicode form; "
                "give them one name"
            )


def _plain(name: str) -> str:
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(folded.replace("_", " ").split())


def _count(labels: NDArray[np.int32], label: int) -> str:
    return f"n = {int((labels == label).sum()):,}"
