"""Copies of images: identical or nearly so, on both sides of a split, under two labels."""

from collections.abc import Iterator, Sequence

import numpy as np

from onsight.audit.finding import Finding, Place
from onsight.audit.subject import Subject
from onsight.data.duplicates.comparison import NearDuplicate
from onsight.data.index import SPLIT_NAMES
from onsight.data.split import different

_ORDER = ("", *SPLIT_NAMES[1:])  # a copy in a later one counts
_SCALE = 40.0  # grey levels of difference at which a score would be 0


def copies(subject: Subject, near: Sequence[NearDuplicate]) -> Iterator[Finding]:
    """Findings for identical images, each with the one that counts, and near-duplicates."""
    yield from _identical(subject)
    for pair in near:
        places = subject.place(pair.first), subject.place(pair.second)
        score = 1 - pair.difference / _SCALE
        yield _finding(places, f"near-duplicate, {pair.kind}", "near-duplicate", score)


def _identical(subject: Subject) -> Iterator[Finding]:
    group, first = different(subject.pack.digests)
    order = np.lexsort((-subject.pack.index.splits, group))  # test above validation above train
    counts = order[np.searchsorted(group[order], np.arange(len(first)))]
    for number in np.flatnonzero(counts[group] != np.arange(len(group))).tolist():
        places = subject.place(int(counts[group[number]])), subject.place(number)
        yield _finding(places, "identical", "identical", 1.0)


def _finding(places: tuple[Place, Place], what: str, kind: str, score: float) -> Finding:
    one, other = places
    training = "both are used, on the same side of every split"
    if one.split != other.split:
        lower = min(places, key=lambda place: _ORDER.index(place.split))
        kind, what = "leakage", f"{what}; {one.split} and {other.split}"
        training = f"the one in {lower.split} is left out"
    elif one.label != other.label:
        kind = "two-labels"
    if kind == "leakage" and one.label != other.label:
        what += "; under two labels"
    return Finding(kind, what, training, places, score)
