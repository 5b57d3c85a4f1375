"""Finds images that must be in the same split: copies of an image, and images of a group.

n images.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.duplicates.near import connected_groups, find_near_duplicates
from onsight.data.index import DIGEST_BYTES, SPLIT_NAMES, TRAIN, UNSPLIT
from onsight.data.pack import Pack
from onsight.data.path_pattern import search_paths
from onsight.data.sources.source import Source
from onsight.data.split import assign_splits, assign_splits_by_time, group_identical
from onsight.errors import ConfigError, DataError
from onsight.text import joined, plural

MAX_SEARCHED = 2000  # distinct images; near-duplicates among so many are found in 2 s on two cores
_MAX_GROUP = 0.2  # fraction of distinct images; a larger group of near-duplicates cannot be a fold


@dataclass(frozen=True)
class SplitUnits:
    """Images that stay together, and how they are split.

    Attributes:
        digests: Equal for images that stay together, (n, 16).
        copy_digests: Equal for copies of an image, whatever their groups, (n, 16).
        times: Times for a split by time, equal for images that stay together, (n,).
        basis: "by digest" or "by time", with the kinds of images that stay together.
        near_duplicates: The number of pairs of near-duplicates, which count as copies; None if only
            identical images do.
    """

    digests: NDArray[np.uint8]
    copy_digests: NDArray[np.uint8]
    times: NDArray[np.float64] | None
    basis: Choice[str]
    near_duplicates: int | None

    def assign(
        self,
        labels: NDArray[np.int32],
        data_splits: NDArray[np.int8],
        validation_fraction: float,
        test_fraction: float,
    ) -> NDArray[np.int8]:
        """Assign images to splits, as `assign_splits` or `assign_splits_by_time` does."""
        fractions = validation_fraction, test_fraction
        if self.times is not None:
            return assign_splits_by_time(self.times, data_splits, *fractions)
        return assign_splits(self.digests, labels, data_splits, *fractions)


def find_split_units(
    source: Source, pack: Pack, config: Config, cache_folder: Path | None
) -> SplitUnits:
    """Find the images that must stay together, and choose how to split.

    Raises:
        ConfigError: If a regular expression cannot be used.
        DataError: If the split that came with the data divides a group.
    """
    copies, kinds = pack.digests, ["identical images"]
    pairs, why_apart = _find_near_duplicates(pack, config, cache_folder)
    if pairs:
        copies = pack.digests[connected_groups(len(pack), pairs)]
        kinds.append(f"{plural(len(pairs), 'pair')} of near-duplicates")
    digests, groups = copies, _find_groups(source, pack, config)
    if groups is not None:
        _refuse_divided(groups, pack)
        digests = _unite(copies, groups)
        kinds.append(f"the images of {plural(len(set(groups) - {''}), 'group')}")
    times, count = None, None if pairs is None else len(pairs)
    if source.times is not None:
        times = _find_latest(digests, source.times[pack.sources])
    value = "by digest" if times is None else "by time"
    reason = f"{joined(kinds)} stay together"
    if why_apart:
        reason += f"; near-duplicates may not: {why_apart} (--split-near-duplicates)"
    return SplitUnits(digests, copies, times, Choice(value, reason), count)


def _find_near_duplicates(
    pack: Pack, config: Config, cache_folder: Path | None
) -> tuple[list[tuple[int, int]] | None, str]:
    """Return the pairs that must stay together, or None and the reason if they may be separated.

    This depends on nothing but the settings and the images, so that a command always splits the
    same images in the same way.
    """
    asked = config.split_near_duplicates
    if asked == "apart":
        return None, ""
    _, distinct = group_identical(pack.digests)
    if asked == "auto" and len(distinct) > MAX_SEARCHED:
        return None, f"searching more than {MAX_SEARCHED:,} images for them takes long"
    pairs = [pair[:2] for pair in find_near_duplicates(pack, cache_folder)]
    largest = int(np.bincount(connected_groups(len(pack), pairs)[distinct]).max())
    if asked == "auto" and largest > max(2, _MAX_GROUP * len(distinct)):
        return None, f"{largest:,} of {len(distinct):,} different images look alike"
    return pairs, ""


def _find_groups(source: Source, pack: Pack, config: Config) -> list[str] | None:
    """Return the group of each image, empty for none, or None if there are no groups."""
    if config.group_by:
        groups = search_paths("--group-by", config.group_by, pack.index.locators)
        if not any(groups):
            raise ConfigError(
                f"--group-by {config.group_by} matches nothing in any path, such as "
                f"{pack.index.locators[0]}"
            )
        return groups
    if source.groups is None:
        return None
    return [source.groups[row] for row in pack.sources.tolist()]


def _refuse_divided(groups: Iterable[str], pack: Pack) -> None:
    """Raise DataError if the split that came with the data divides a group.

    Images without a split are not held out together with the others of their group.
    """
    sides: dict[str, int] = {}
    splits = np.where(pack.index.splits == UNSPLIT, np.int8(TRAIN), pack.index.splits)
    for group, split in zip(groups, splits.tolist(), strict=True):
        if group and sides.setdefault(group, split) != split:
            raise DataError(
                f"group '{group}' is in both {SPLIT_NAMES[sides[group]]} and {SPLIT_NAMES[split]} "
                "of the given split, where images without one count as train: correct the split, "
                "or leave out the groups"
            )


def _unite(copies: NDArray[np.uint8], groups: Sequence[str]) -> NDArray[np.uint8]:
    """Return digests that are equal for images connected by copies or groups, (n, 16)."""
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
    # The digest of a group depends on its name, so that adding images does not move the group.
    for unit, group in names.items():
        name = hashlib.sha256(group.encode("utf-8", "surrogateescape")).digest()
        digests[unit] = np.frombuffer(name[:DIGEST_BYTES], np.uint8)
    return digests[lowest]


def _find_latest(digests: NDArray[np.uint8], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the latest time among the images with the same digest, for each image (n,)."""
    _, unit = np.unique(digests, axis=0, return_inverse=True)
    latest = np.full(unit.max() + 1, -np.inf)
    np.maximum.at(latest, unit, times)
    return latest[unit]
