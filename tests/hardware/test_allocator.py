import ctypes
import types

import pytest

from onsight.hardware import memory


@pytest.mark.parametrize(
    ("library", "calls"), [("glibc", [(-3, 1 << 30), (-1, 1 << 30)]), ("", [])]
)
def test_only_glibc_is_set_and_only_once(monkeypatch, library, calls):
    told = []
    fake = types.SimpleNamespace(mallopt=lambda *words: told.append(words))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: fake)
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: (library, "2.36"))
    memory.keep_freed_memory.cache_clear()
    memory.keep_freed_memory()
    memory.keep_freed_memory()
    memory.keep_freed_memory.cache_clear()
    assert told == calls
