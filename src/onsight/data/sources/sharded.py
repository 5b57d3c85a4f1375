"""A source made from the table of its shards, wherever these are."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from onsight.data.index import Index
from onsight.data.shards.table import ShardTable
from onsight.data.sources.source import Shards, Source, fingerprint, found_line
from onsight.errors import DataError
from onsight.words import plural


def sharded_source(
    kind: str,
    what: str,
    split_of: Callable[[str], int],
    root: Path,
    table: ShardTable,
    read: Callable[[int], bytes],
    shards: Shards,
) -> Source:
    """The source of a table. what: as the user is told it; split_of: the split a name tells.

    Raises DataError if there is no usable image.
    """
    problems = [problem for part in table.problems for problem in part]
    if not len(table):
        reason = f", such as {problems[0].path}: {problems[0].reason}" if problems else ""
        raise DataError(f"{root} holds no shard with images and labels{reason}")
    splits = np.array([split_of(shard.name) for shard in table.shards], np.int8)
    counts = np.diff(table.starts)
    index = Index.of_columns(table.locators, table.labels, table.names, np.repeat(splits, counts))
    size = f"{plural(len(table), 'image')} in {plural(int((counts > 0).sum()), 'shard')}"
    return Source(
        kind=kind,
        root=root,
        index=index,
        read=read,
        fingerprint=fingerprint([kind, str(root), *table.shards]),
        found=found_line(what, index, size),
        problems=problems,
        shards=shards,
    )
