"""Near-duplicates: the same image resized, encoded again, slightly cropped or mirrored."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from onsight.data.duplicates.candidates import find_candidates
from onsight.data.duplicates.comparison import NearDuplicate, near_duplicates
from onsight.data.duplicates.groups import Groups
from onsight.data.duplicates.signatures import MIRRORED, WHOLE, View, cropped_views
from onsight.data.pack import Pack
from onsight.data.split import different


def find_near_duplicates(
    pack: Pack, progress: Callable[[int], None] = lambda done: None
) -> list[NearDuplicate]:
    """Pairs of images that show the same but are not identical, by image number.

    Of identical images only one is compared. A mirrored copy counts only if it is not cropped.
    progress: called with counts of images.
    """
    _, kept = different(pack.digests)
    return _find(pack, kept, [WHOLE, MIRRORED, *cropped_views()], progress)


def glance(pack: Pack, most: int) -> list[NearDuplicate]:
    """The same among so many images at most, and without cropped and mirrored copies."""
    _, kept = different(pack.digests)
    return _find(pack, kept[:most], [WHOLE], lambda done: None)


def _find(
    pack: Pack, kept: NDArray[np.int64], views: Sequence[View], progress: Callable[[int], None]
) -> list[NearDuplicate]:
    found = [
        one
        for view, pairs in find_candidates(pack, kept, views, progress)
        for one in near_duplicates(pack, pairs, view)
    ]
    return _connecting(sorted(found, key=lambda one: one.difference))


def _connecting(found: Sequence[NearDuplicate]) -> list[NearDuplicate]:
    """Those pairs, the most alike first, that connect images not connected before.

    In a group of many, each image is named with one that is most like it, not with all.
    """
    tree = Groups()
    return sorted(one for one in found if tree.join(one.first, one.second))
