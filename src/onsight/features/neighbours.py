"""Search for the nearest images by their features, in blocks.

D features, m queries, n images to compare with.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_QUERIES, _ROWS = 256, 16_384  # queries and rows per block: 16 MB of similarities


class Neighbours(NamedTuple):
    """The nearest images of each query, most similar first."""

    rows: Tensor  # their rows among the n images, int64 (m, k)
    similarities: Tensor  # their similarities, float32 (m, k)


def find_nearest(queries: Tensor, among: Tensor, count: int) -> Neighbours:
    """Return the most similar images for each query.

    The similarity is the cosine, from -1 to 1, after the mean of the n images is subtracted from
    all features.

    Args:
        queries: Features of the queries, float (m, D).
        among: Features of the images to search, float (n, D).
        count: The number of images per query; all n if there are fewer.
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
    values, columns = similarities.topk(min(count, rows.shape[1]), dim=1)
    return Neighbours(rows.gather(1, columns), values)


def _directions(features: Tensor, centre: Tensor) -> Tensor:
    return F.normalize(features - centre, dim=1)
