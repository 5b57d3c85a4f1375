"""Rows as lines for people."""

from collections.abc import Sequence

from onsight.inference.predictor import Prediction
from onsight.inference.rows.columns import Columns
from onsight.inference.rows.counts import Counts
from onsight.words import fixed_percent

_OUT_OF_DISTRIBUTION = "unlike anything seen in training"


class Lines:
    """A line for each image: class, probability, path; and more classes, if asked for."""

    head = b""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        words = [*columns.classes, *(["unsure"] if columns.has_unsure else [])]
        self._width = max(map(len, words), default=1)

    def rows(self, predictions: Sequence[Prediction]) -> bytes:
        """Rows that follow those before."""
        return "".join(map(self._line, predictions)).encode("utf-8", "surrogateescape")

    def tail(self, counts: Counts) -> bytes:
        """Nothing."""
        return b""

    def _line(self, one: Prediction) -> str:
        said = "unsure" if one.unsure else one.predicted or "-"
        best = self._columns.record(one).get("probabilities") or []
        more = ", ".join(f"{b['class']} {fixed_percent(b['probability'])}" for b in best)
        out_of_distribution = _OUT_OF_DISTRIBUTION if one.out_of_distribution else ""
        note = one.problem or "; ".join(filter(None, (more, out_of_distribution)))
        line = f"{said:<{self._width}}  {fixed_percent(one.probability):>7}  {one.path}"
        return f"{line}  ({note})\n" if note else f"{line}\n"
