"""Units that a split must not divide: copies of an image, and images of one group.

n images.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.duplicates.near import (
    connected_groups,
    find_near_duplicates,
    read_cached_duplicates,
)
from onsight.data.index import DIGEST_BYTES, SPLIT_NAMES, UNSPLIT
from onsight.data.pack import Pack
from onsight.data.sources.source import Source
from onsight.data.split import assign_splits, assign_splits_by_time
from onsight.errors import ConfigError, DataError
from onsight.text import joined, plural


@dataclass(frozen=True)
class SplitUnits:
    """The images that stay together, and how they are split."""

    digests: NDArray[np.uint8]  # (n, 16), equal for images that stay together
    copy_digests: NDArray[np.uint8]  # (n, 16), equal for copies, whatever their groups
    times: NDArray[np.float64] | None  # (n,) for a split by time, equal within a unit
    how: Choice[str]  # basis of the split, and the images that it keeps together
    includes_near_duplicates: bool  # copies are near-duplicates too, not only identical images

    def assign(
        self, given: NDArray[np.int8], validation_fraction: float, test_fraction: float
    ) -> NDArray[np.int8]:
        """Return the split of each image: int8 (n,) of TRAIN, VALIDATION or TEST."""
        if self.times is not None:
            return assign_splits_by_time(self.times, given, validation_fraction, test_fraction)
        return assign_splits(self.digests, given, validation_fraction, test_fraction)


def find_split_units(
    source: Source, pack: Pack, config: Config, cache_folder: Path | None
) -> SplitUnits:
    """Find the images that must stay together, and choose how to split.

    Raises ConfigError for a regular expression that cannot be used, DataError for a group that a
    given split divides.
    """
    copies, together = pack.digests, ["identical images"]
    pairs = _near_duplicates(source, pack, config, cache_folder)
    if pairs is not None:
        copies = pack.digests[connected_groups(len(pack), pairs)]
        together.append(f"{plural(len(pairs), 'pair')} of near-duplicates")
    digests, groups = copies, _groups(source, pack, config)
    if groups is not None:
        _refuse_divided(groups, pack)
        digests = _unite(copies, groups)
        together.append(f"the images of {plural(len(set(groups) - {''}), 'group')}")
    times = None
    if source.times is not None:
        times = _latest(digests, source.times[pack.sources])
    value = "by digest" if times is None else "by time"
    how = Choice(value, f"{joined(together)} stay together")
    return SplitUnits(digests, copies, times, how, pairs is not None)


def _near_duplicates(
    source: Source, pack: Pack, config: Config, cache_folder: Path | None
) -> Sequence[tuple[int, int]] | None:
    """Return the pairs that must stay together, None if near-duplicates may be divided."""
    if config.split_near_duplicates == "apart":
        return None
    pairs = read_cached_duplicates(cache_folder, source, pack)
    if pairs is None and config.split_near_duplicates == "together":
        return [(pair.first, pair.second) for pair in find_near_duplicates(pack)]
    return pairs


def _groups(source: Source, pack: Pack, config: Config) -> list[str] | None:
    """Return each image's group, empty for none; None if there are no groups at all."""
    if config.group_by:
        pattern = _compile(config.group_by)
        groups = [_match(pattern, locator) for locator in pack.index.locators]
        if not any(groups):
            raise ConfigError(
                f"--group-by {config.group_by} matches nothing in any path, such as "
                f"{pack.index.locators[0]}"
            )
        return groups
    if source.groups is None:
        return None
    return [source.groups[row] for row in pack.sources.tolist()]


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"--group-by {text} is not a regular expression: {error}") from error


def _match(pattern: re.Pattern[str], path: str) -> str:
    """Return the name of the group: the first parenthesis, or else the whole match."""
    match = pattern.search(path)
    return (match[1] if pattern.groups else match[0]) or "" if match else ""


def _refuse_divided(groups: Iterable[str], pack: Pack) -> None:
    """Raise DataError for a group on two sides of a split that came with the data."""
    sides: dict[str, int] = {}
    for group, split in zip(groups, pack.index.splits.tolist(), strict=True):
        if group and split != UNSPLIT and sides.setdefault(group, split) != split:
            raise DataError(
                f"group '{group}' is in both {SPLIT_NAMES[sides[group]]} and {SPLIT_NAMES[split]} "
                "of the given split: correct the split, or leave out the groups"
            )


def _unite(copies: NDArray[np.uint8], groups: Sequence[str]) -> NDArray[np.uint8]:
    """Return digests equal for images of one group, and for all that copies connect with them."""
    first: dict[object, int] = {}
    pairs = []
    for index, group in enumerate(groups):
        for unit in (copies[index].tobytes(), *([group] if group else [])):
            pairs.append((first.setdefault(unit, index), index))
    lowest = connected_groups(len(copies), pairs)
    digests = copies.copy()
    names: dict[int, str] = {}
    for unit, group in zip(lowest.tolist(), groups, strict=True):
        if group:
            names[unit] = min(group, names.get(unit, group))
    for unit, group in names.items():  # the name decides: more images of a group do not move it
        name = hashlib.sha256(group.encode("utf-8", "surrogateescape")).digest()
        digests[unit] = np.frombuffer(name[:DIGEST_BYTES], np.uint8)
    return digests[lowest]


def _latest(digests: NDArray[np.uint8], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the latest time of each image's unit."""
    _, unit = np.unique(digests, axis=0, return_inverse=True)
    latest = np.full(unit.max() + 1, -np.inf)
    np.maximum.at(latest, unit, times)
    return latest[unit]
