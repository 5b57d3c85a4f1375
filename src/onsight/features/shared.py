"""Features that several trainings of one run share, such as its folds."""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor


class SharedFeatures:
    """Rows of features by image number, each computed when it is first asked for."""

    def __init__(self) -> None:
        self.rows: dict[Hashable, Tensor] = {}

    def get(self, kind: Hashable, ids: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """The features (m, D) of images ids (n,); m < n if compute had no time for all.

        kind: all that determines features besides the image; compute(ids) returns the features
        of the first of these images.
        """
        rows = self.rows.get(kind)
        known = torch.zeros(len(ids), dtype=torch.bool) if rows is None else self._has(rows, ids)
        missing = ids[~known]
        if len(missing):
            computed = compute(missing)
            rows = self._with(kind, missing[: len(computed)], computed)
        if rows is None:
            return compute(ids)  # of no images: shows how many features there are
        usable = self._has(rows, ids).long().cumprod(0).bool()  # up to the first that is missing
        return rows[ids[usable]]

    def _has(self, rows: Tensor, ids: Tensor) -> Tensor:
        inside = ids < len(rows)
        return inside & ~rows[ids.clamp(max=len(rows) - 1), 0].isnan()

    def _with(self, kind: Hashable, ids: Tensor, features: Tensor) -> Tensor:
        rows = self.rows.get(kind)
        count = max(len(rows) if rows is not None else 0, int(ids.max()) + 1 if len(ids) else 0)
        grown = features.new_full((count, features.shape[1]), torch.nan)
        if rows is not None:
            grown[: len(rows)] = rows
        grown[ids] = features
        self.rows[kind] = grown
        return grown
