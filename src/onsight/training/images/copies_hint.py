"""A glance at copies among the images, for which `onsight check` has a page."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onsight.choice import Choice
from onsight.data.dataset import Dataset
from onsight.data.duplicates.near import connected_groups, sample_near_duplicates
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.sources.source import is_memory_name
from onsight.data.split import group_identical
from onsight.text import plural

_MOST = 10_000  # images that are compared, which takes seconds


@dataclass(frozen=True)
class Glance:
    """What a glance found: identical copies, pairs of near-duplicates, the images compared."""

    identical: int
    pairs: list[tuple[int, int]]
    compared: NDArray[np.int64]


def glance_at(dataset: Dataset) -> Glance:
    """Compare the images, or some of very many; near-duplicates that are known are left out."""
    pack = dataset.pack
    _, first = group_identical(pack.digests)
    found = [] if dataset.units.includes_near_duplicates else sample_near_duplicates(pack, _MOST)
    pairs = [(one.first, one.second) for one in found]
    return Glance(len(pack) - len(first), pairs, first[:_MOST])


def copies_hint(seen: Glance, dataset: Dataset, data: str) -> str:
    """What the glance shows and the command that shows more; empty if there is nothing to show."""
    parts = []
    if seen.identical:
        parts.append(plural(seen.identical, "identical copy", "identical copies"))
    if seen.pairs:
        is_part = len(dataset.pack) - seen.identical > _MOST
        among = f" among {_MOST:,} images" if is_part else ""
        parts.append(plural(len(seen.pairs), "near-duplicate") + among)
    if not parts:
        return ""
    command = "onsight.check" if is_memory_name(data) else f"onsight check {data}"
    keeps = ", and the next training keeps near-duplicates on one side of its split"
    return f"{' and '.join(parts)}: `{command}` shows them{keeps if seen.pairs else ''}"


def with_alikeness(how: Choice[str], seen: Glance, dataset: Dataset) -> Choice[str]:
    """How the split is drawn, and how many held-out images are like one to learn from."""
    held_out = np.isin(dataset.splits, (VALIDATION, TEST))
    if dataset.units.includes_near_duplicates or not held_out.any():
        return how
    group = connected_groups(len(dataset.pack), seen.pairs)
    learned = np.isin(group, group[dataset.splits == TRAIN])
    compared = held_out[seen.compared]
    alike = int((compared & learned[seen.compared]).sum())
    sentence = (
        f"of {plural(int(compared.sum()), 'held-out image')}, {alike:,} "
        f"{'is a near-duplicate' if alike == 1 else 'are near-duplicates'} of training images"
    )
    return replace(how, reason=f"{how.reason}; {sentence}")
