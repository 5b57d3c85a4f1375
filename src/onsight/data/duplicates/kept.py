"""Near-duplicates that a check found, kept in the cache for later trainings on the same DATA."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from onsight.data import decode
from onsight.data.duplicates.comparison import NearDuplicate
from onsight.data.pack import Pack
from onsight.data.sources.source import Source
from onsight.errors import DiskError
from onsight.files import write_json

_VERSION = 1  # raise it when other pairs may be found


def keep_near_duplicates(
    cache_folder: Path | None, source: Source, pack: Pack, found: Sequence[NearDuplicate]
) -> None:
    """Keep the pairs, if there is a cache and the disk allows."""
    if cache_folder is None:
        return
    rows = [[int(pack.sources[one.first]), int(pack.sources[one.second])] for one in found]
    with suppress(OSError, DiskError):
        path = _path(cache_folder, source)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, rows)


def kept_near_duplicates(
    cache_folder: Path | None, source: Source, pack: Pack
) -> list[tuple[int, int]] | None:
    """The pairs by image number; None if DATA as it is now was not checked."""
    if cache_folder is None:
        return None
    try:
        rows = np.array(json.loads(_path(cache_folder, source).read_text()), np.int64)
        rows = rows.reshape(-1, 2)
    except (OSError, ValueError, TypeError, OverflowError):
        return None
    numbers = np.full(len(source.index), -1)
    numbers[pack.sources] = np.arange(len(pack))
    if rows.size and not 0 <= rows.min() <= rows.max() < len(numbers):
        return None
    pairs = numbers[rows]
    return [(first, second) for first, second in pairs.tolist() if min(first, second) >= 0]


def _path(cache_folder: Path, source: Source) -> Path:
    facts = [_VERSION, decode.VERSION, source.kind, str(source.root), source.fingerprint]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return cache_folder / "duplicates" / f"{digest[:32]}.json"
