"""The nearest images by their features, compared with all of them in blocks.

D features, m queries, n images to compare with.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_QUERIES, _ROWS = 256, 16_384  # queries and rows per block: 16 MB of similarities


class Neighbours(NamedTuple):
    """The nearest images of each query, most similar first."""

    rows: Tensor  # int64 (m, k) among the n images
    similarities: Tensor  # float32 (m, k)


def find_nearest(queries: Tensor, among: Tensor, count: int) -> Neighbours:
    """Return the `count` most similar images for each query, or all n if that is fewer.

    The similarity is the cosine, -1 to 1, of features from which the mean of the n images was
    subtracted, because all images share it. queries: float (m, D); among: float (n, D).
    """
    centre = among.mean(dim=0)
    blocks = [_search(block, among, centre, count) for block in queries.split(_QUERIES)]
    return Neighbours(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))


def _search(queries: Tensor, among: Tensor, centre: Tensor, count: int) -> Neighbours:
    queries = _directions(queries, centre)
    best = Neighbours(torch.empty(len(queries), 0, dtype=torch.long), torch.empty(len(queries), 0))
    for first, block in zip(range(0, len(among), _ROWS), among.split(_ROWS), strict=True):
        similarities = queries @ _directions(block, centre).T
        rows = torch.arange(first, first + len(block)).expand_as(similarities)
        best = _select(
            torch.cat([best.rows, rows], 1), torch.cat([best.similarities, similarities], 1), count
        )
    return best


def _select(rows: Tensor, similarities: Tensor, count: int) -> Neighbours:
    values, places = similarities.topk(min(count, rows.shape[1]), dim=1)
    return Neighbours(rows.gather(1, places), values)


def _directions(features: Tensor, centre: Tensor) -> Tensor:
    return F.normalize(features - centre, dim=1)
