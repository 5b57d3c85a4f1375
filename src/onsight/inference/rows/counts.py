"""How many images were predicted so far."""

from collections.abc import Sequence
from dataclasses import dataclass

from onsight.inference.predictor import Prediction


@dataclass
class Counts:
    """Rows by what became of them, and the first that could not be used, with its reason."""

    images: int = 0
    problems: int = 0
    unsure: int = 0
    first_problem: str = ""

    @property
    def used(self) -> int:
        """Images that the model has seen."""
        return self.images - self.problems

    def add(self, rows: Sequence[Prediction]) -> None:
        """Count more rows."""
        self.images += len(rows)
        for one in rows:
            if one.problem is not None:
                self.problems += 1
                self.first_problem = self.first_problem or f"{one.path}: {one.problem}"
            else:
                self.unsure += one.unsure
