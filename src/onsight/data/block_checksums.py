"""Checksums of a large file by blocks, so that damage on the disk does not go unnoticed."""

import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

_BLOCK = 16 * 2**20  # bytes
_MOST_CHECKED = 8 * 2**30  # bytes: reading more than that takes longer than a user should wait


def block_checksums(content: NDArray[np.uint8], threads: int) -> NDArray[np.int64]:
    """The CRC-32 of each 16 MB of flat bytes (n,), as int64 (ceil(n / 16 MB),)."""
    starts = range(0, len(content), _BLOCK)
    with ThreadPoolExecutor(threads) as pool:  # zlib computes outside Python's lock
        found = pool.map(lambda start: zlib.crc32(content[start : start + _BLOCK].data), starts)
        return np.fromiter(found, np.int64, len(starts))


def is_intact(content: NDArray[np.uint8], checksums: NDArray[np.int64], threads: int) -> bool:
    """Whether flat bytes still have these checksums; more than 8 GB are taken for intact."""
    if len(content) > _MOST_CHECKED:
        return True
    return np.array_equal(block_checksums(content, threads), checksums)
