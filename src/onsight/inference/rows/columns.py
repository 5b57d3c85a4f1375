"""What a row says about an image, the same in every kind of file.

K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from onsight.inference.predictor import Prediction

KNOWN = ("path", "predicted", "probability", "problem")
PLAIN = (*KNOWN, "out_of_distribution", "score")


@dataclass(frozen=True)
class Columns:
    """The columns asked for: unsure, and the best classes besides the one that is predicted."""

    classes: Sequence[str]
    top: int = 0
    has_unsure: bool = False

    @cached_property
    def header(self) -> list[str]:
        """The names of the cells of a table without lists."""
        best = range(1, min(self.top, len(self.classes)) + 1)
        numbered = [f"{name}_{place}" for place in best for name in ("class", "probability")]
        return [*PLAIN, *(["unsure"] if self.has_unsure else []), *numbered]

    def cells(self, one: Prediction) -> list[str]:
        """A row of text, empty where there is nothing."""
        cells = [one.path, one.predicted or "", _decimals(one.probability), one.problem or ""]
        cells.append(
            "" if one.out_of_distribution is None else str(one.out_of_distribution).lower()
        )
        cells.append("" if one.score is None else f"{one.score:.6g}")
        if self.has_unsure:
            cells.append("" if one.problem else str(one.unsure).lower())
        for named in self._best(one) if self.top else ():
            cells += [named["class"], _decimals(named["probability"])]
        return cells + [""] * (len(self.header) - len(cells))

    def record(self, one: Prediction) -> dict[str, Any]:
        """A row as plain values by name."""
        row: dict[str, Any] = {name: getattr(one, name) for name in PLAIN}
        if self.has_unsure:
            row["unsure"] = None if one.problem else one.unsure
        if self.top:
            row["probabilities"] = None if one.problem else self._best(one)
        return row

    @property
    def schema(self) -> Any:
        """The same names with their types, as pyarrow's Schema."""
        import pyarrow

        text, share = pyarrow.string(), pyarrow.float32()
        fields = {"path": text, "predicted": text, "probability": share, "problem": text}
        fields |= {"out_of_distribution": pyarrow.bool_(), "score": share}
        if self.has_unsure:
            fields["unsure"] = pyarrow.bool_()
        if self.top:
            best = pyarrow.struct({"class": text, "probability": share})
            fields["probabilities"] = pyarrow.list_(best)
        return pyarrow.schema(fields)

    def _best(self, one: Prediction) -> list[dict[str, Any]]:
        """The most probable classes, the first ones among equals."""
        if one.probabilities is None:
            return []
        best = np.argsort(-one.probabilities, kind="stable")[: self.top].tolist()
        shares = one.probabilities.tolist()
        return [{"class": self.classes[k], "probability": shares[k]} for k in best]


def _decimals(probability: float | None) -> str:
    return "" if probability is None else f"{probability:.6f}"
