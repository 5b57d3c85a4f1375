"""Which images all runs held out, and why the others are left out."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.report.comparison.held_out import HeldOut

_NONE = -1


class LeftOut(NamedTuple):
    """How many of a run's held-out images are not compared, by reason.

    seen: another run was trained or selected with them; relabelled: they have another label there;
    absent: another run does not have them, as far as can be told.
    """

    seen: int
    relabelled: int
    absent: int


class Pairing(NamedTuple):
    """The images that all R runs held out.

    rows: int64 (R, n), the place of every common image in each run; left_out: one per run.
    """

    rows: NDArray[np.int64]
    left_out: tuple[LeftOut, ...]


def pair(runs: Sequence[HeldOut]) -> Pairing:
    """Find the common images by digest, else by path, and count the others."""
    first, *others = runs
    rows = np.stack([np.arange(len(first)), *(_match(first, other) for other in others)])
    rows = rows[:, (rows != _NONE).all(axis=0)]
    clean = [not _was_seen(runs, places.tolist()) for places in rows.T]
    rows = rows[:, np.array(clean, bool)]
    left_out = [_reasons(run, runs, used) for run, used in zip(runs, rows, strict=True)]
    return Pairing(rows, tuple(left_out))


def _match(first: HeldOut, other: HeldOut) -> NDArray[np.int64]:
    """The row of each of the first run's images in the other run, or -1: (n,)."""
    rows = np.full(len(first), _NONE)
    digests = _by_digest(first, range(len(first))), _by_digest(other, range(len(other)))
    left, left_there = _take(rows, *digests)
    if _paths_agree(first, other):
        _take(rows, _by_path(first, left), _by_path(other, left_there))
    return rows


def _paths_agree(first: HeldOut, other: HeldOut) -> bool:
    """Whether equal paths mean equal images although their digests differ or are missing.

    A JPEG decoded for another image size has another digest.
    """
    if not (any(first.digests) and any(other.digests)):
        return True
    return first.data == other.data and first.format != other.format


def _by_digest(run: HeldOut, rows: Iterable[int]) -> list[tuple[int, Hashable]]:
    """Rows with what identifies their image; None matches nothing."""
    return [
        (row, (run.digests[row], run.labels[row]) if run.digests[row] else None) for row in rows
    ]


def _by_path(run: HeldOut, rows: Iterable[int]) -> list[tuple[int, Hashable]]:
    return [(row, (run.image_paths[row], run.labels[row])) for row in rows]


def _take(
    rows: NDArray[np.int64],
    first: Iterable[tuple[int, Hashable]],
    other: Iterable[tuple[int, Hashable]],
) -> tuple[list[int], list[int]]:
    """Match equal keys one to one, in order, into rows; return what is left on both sides."""
    waiting: dict[Hashable, list[int]] = defaultdict(list)
    unmatched, left = [], []
    for row, key in other:
        if key is None:
            unmatched.append(row)
        else:
            waiting[key].append(row)
    for places in waiting.values():
        places.reverse()
    for row, key in first:
        if key is not None and waiting.get(key):
            rows[row] = waiting[key].pop()
        else:
            left.append(row)
    unmatched += [row for places in waiting.values() for row in places]
    return left, sorted(unmatched)


def _was_seen(runs: Sequence[HeldOut], places: Sequence[int]) -> bool:
    """Whether a test image of one run trained or selected another, under any of its digests."""
    digests = {run.digests[place] for run, place in zip(runs, places, strict=True)}
    return any(digests & run.seen for run in runs if run.split != "validation")


def _reasons(run: HeldOut, runs: Sequence[HeldOut], used: NDArray[np.int64]) -> LeftOut:
    others = [other for other in runs if other is not run]
    labels = [_labels_by_digest(other) for other in others]
    counts = {"seen": 0, "relabelled": 0, "absent": 0}
    for row in sorted(set(range(len(run))) - set(used.tolist())):
        digest, label = run.digests[row], run.labels[row]
        if any(digest in other.seen for other in others):
            counts["seen"] += 1
        elif any(label not in known.get(digest, {label}) for known in labels):
            counts["relabelled"] += 1
        else:
            counts["absent"] += 1
    return LeftOut(**counts)


def _labels_by_digest(run: HeldOut) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for digest, label in zip(run.digests, run.labels.tolist(), strict=True):
        if digest:
            found[digest].add(label)
    return found
