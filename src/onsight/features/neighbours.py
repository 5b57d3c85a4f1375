"""The nearest images by their features, compared with all of them in blocks.

D features, m queries, n images to compare with.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_QUERIES, _ROWS = 256, 16_384  # in a block: 16 MB of similarities, however many images


class Neighbours(NamedTuple):
    """rows: int64 (m, k) among the n images, most similar first; similarities: float32 (m, k)."""

    rows: Tensor
    similarities: Tensor


def nearest(queries: Tensor, among: Tensor, count: int) -> Neighbours:
    """The `count` most similar images for each query, or all n if that is fewer.

    The similarity is the cosine, -1 to 1, of features from which the mean of the n images was
    subtracted: it is the same for all and says nothing. queries: float (m, D); among: float (n, D).
    """
    centre = among.mean(dim=0)
    found = [_search(block, among, centre, count) for block in queries.split(_QUERIES)]
    return Neighbours(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _search(queries: Tensor, among: Tensor, centre: Tensor, count: int) -> Neighbours:
    queries = _directions(queries, centre)
    best = Neighbours(torch.empty(len(queries), 0, dtype=torch.long), torch.empty(len(queries), 0))
    for first, block in zip(range(0, len(among), _ROWS), among.split(_ROWS), strict=True):
        similar = queries @ _directions(block, centre).T
        rows = torch.arange(first, first + len(block)).expand_as(similar)
        best = _best(
            torch.cat([best.rows, rows], 1), torch.cat([best.similarities, similar], 1), count
        )
    return best


def _best(rows: Tensor, similarities: Tensor, count: int) -> Neighbours:
    values, places = similarities.topk(min(count, rows.shape[1]), dim=1)
    return Neighbours(rows.gather(1, places), values)


def _directions(features: Tensor, centre: Tensor) -> Tensor:
    return F.normalize(features - centre, dim=1)
