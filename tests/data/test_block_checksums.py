"""Checksums of blocks, against zlib on the whole."""

import zlib

import numpy as np
import pytest

from onsight.data import pack as module
from onsight.data.pack import block_checksums, is_intact

CONTENT = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 300)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("threads", [1, 3])
def test_each_block_has_its_checksum(threads):
    found = block_checksums(CONTENT, threads)
    assert found.tolist() == [
        zlib.crc32(CONTENT[at : at + 300].tobytes()) for at in (0, 300, 600, 900)
    ]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("place", [0, 299, 300, 999])
def test_any_changed_byte_is_noticed(place):
    checksums = block_checksums(CONTENT, 1)
    assert is_intact(CONTENT, checksums, 1)
    changed = CONTENT.copy()
    changed[place] += 1
    assert not is_intact(changed, checksums, 1)


def test_what_would_take_too_long_is_taken_for_intact(monkeypatch):
    monkeypatch.setattr(module, "_MAX_CHECKED", 999)
    assert is_intact(CONTENT, np.zeros(1, np.int64), 1)
