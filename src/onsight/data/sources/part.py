"""A part of a source: some of its images, with all others accounted for."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onsight.data.index import TEST, VALIDATION, Problem
from onsight.data.sources.source import Source, fingerprint

DRAWN = "draw"  # the stage at which images are left out that nothing is wrong with


def part_of(source: Source, rows: NDArray[np.int64]) -> Source:
    """The source with these rows alone, in their order."""
    return replace(
        source,
        index=source.index.take(rows),
        read=lambda row: source.read(int(rows[row])),
        fingerprint=fingerprint([source.fingerprint, rows.tolist()]),
        groups=[source.groups[row] for row in rows.tolist()] if source.groups else None,
        times=None if source.times is None else source.times[rows],
        shards=source.shards and replace(source.shards, of=source.shards.of[rows]),
    )


def left_out(source: Source, rows: NDArray[np.int64], reason: str) -> list[Problem]:
    """The other rows, listed with the reason why they are not used."""
    locators = source.index.locators
    others = np.setdiff1d(np.arange(len(source.index)), rows)
    return [Problem(locators[int(row)], DRAWN, reason) for row in others]


def held_out_images(source: Source) -> int:
    """How many images are in a given test or validation part."""
    return int(np.isin(source.index.splits, (TEST, VALIDATION)).sum())


def draw_rows(source: Source, count: int, seed: int) -> NDArray[np.int64]:
    """Rows of that many images, drawn at random, after all of a given test or validation part.

    Of each class at least one is drawn, and the others in proportion. Fewer are the first of more.
    """
    splits = source.index.splits
    held_out = np.isin(splits, (TEST, VALIDATION))
    free = np.random.default_rng(seed).permutation(np.flatnonzero(~held_out))
    _, first = np.unique(source.index.labels[free], return_index=True)
    order = np.concatenate([free[first], np.delete(free, first)])
    return np.concatenate([np.flatnonzero(held_out), order[: max(count, len(first))]])
