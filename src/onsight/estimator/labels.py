"""The labels y of a fit: their classes in order, and the names that the classes get in a run."""

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsight.errors import ArgumentError
from onsight.words import plural


def read_labels(y: Any) -> tuple[NDArray[Any], list[Any]]:
    """The different labels in order, of y's own type (K,), and the label of each image (n).

    Raises ArgumentError for anything but one str or whole number per image, or for one class.
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise ArgumentError(f"y has shape {labels.shape}; it must have one label per image, (n,)")
    plain = labels.tolist()
    missing = [row for row, label in enumerate(plain) if label is None or label != label]
    if missing:
        raise ArgumentError(
            f"y has {plural(len(missing), 'missing label')} (NaN or None), the first in row "
            f"{missing[0]}; leave these images out"
        )
    if labels.dtype.kind == "f" and (labels % 1).any():
        raise ArgumentError("y has fractions: Classifier needs classes, not measurements")
    try:
        classes = np.unique(labels)
    except TypeError:  # values of several types have no order
        raise ArgumentError("y has labels of several types; give only str or only int") from None
    if len(classes) == 1:
        raise ArgumentError(f"y has only one class, {plain[0]!r}; a classifier needs at least two")
    return classes, [str(label) for label in plain] if labels.dtype.kind == "f" else plain


def name_columns(classes: NDArray[Any]) -> dict[str, int]:
    """The place of each class by its name in a run. Raises ArgumentError for equal names."""
    names = [unicodedata.normalize("NFC", str(label)) for label in classes.tolist()]
    columns = {name: place for place, name in enumerate(names)}
    if len(columns) < len(names):
        raise ArgumentError("two labels of y differ only in how Unicode writes an accent")
    return columns
