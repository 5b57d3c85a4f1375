"""One budget of memory for decoding, shared by all threads of the process.

An image's header tells how many bytes its decoder will need. It waits until they are free, so that
a few small files with very many pixels cannot exhaust the memory together.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from onsight.errors import ConfigError, ImageError
from onsight.text import data_size
from onsight_explain.host_memory import free_host_bytes
from onsight_explain.threads import usable_cores

VARIABLE = "ONSIGHT_DECODE_GIGABYTES"
_SHARE = 4  # no image may take more than a quarter of the memory that is free at first
_CORE_BYTES, _MIN_SHARED_BYTES = 256 * 2**20, 512 * 2**20  # more at once would gain nothing
_MIN_BYTES = 128 * 2**20  # an ordinary photograph can always be decoded


class NeedsMemory(ImageError):
    """An image needs more memory than there is for all images together."""


class MemoryBusy(ImageError):
    """Other images did not free enough memory in time."""


class DecodingMemory:
    """Counts the bytes that all threads use for decoding.

    An image that needs more than images may take together is decoded while no other is. They wait
    in line, so that small images cannot keep a large one waiting.

    Args:
        total_bytes: The budget; None for the environment variable or the default, at first use.
    """

    def __init__(self, total_bytes: int | None = None) -> None:
        self._total_bytes = total_bytes
        self._shared_bytes = total_bytes or 0
        self._used_bytes = 0
        self._line: deque[object] = deque()
        self._changed = threading.Condition()
        self._thread = threading.local()

    @property
    def total_bytes(self) -> int:
        """The budget. Raises ConfigError if the environment variable cannot be used."""
        if self._total_bytes is None:
            self._total_bytes, self._shared_bytes = _choose_total()
        return self._total_bytes

    @contextmanager
    def held(self, patience_seconds: float | None = None) -> Iterator[None]:
        """Until the end of the outermost such block, keep what this thread reserves in it.

        patience_seconds: how long it waits for memory; None for as long as it takes.
        """
        if hasattr(self._thread, "reserved_bytes"):
            yield
            return
        self._thread.reserved_bytes, self._thread.patience_seconds = 0, patience_seconds
        try:
            yield
        finally:
            with self._changed:
                self._release()
            del self._thread.reserved_bytes

    def reserve(self, needed_bytes: int) -> None:
        """Wait for memory, instead of what this thread has reserved so far; call it in `held`.

        Raises NeedsMemory, MemoryBusy.
        """
        total = self.total_bytes
        if needed_bytes > total:
            raise NeedsMemory(
                f"decoding it takes {data_size(needed_bytes)} of memory, and there is "
                f"{data_size(total)} for decoding: make the image smaller, or set {VARIABLE}"
            )
        with self._changed:
            # Whoever waits holds nothing, so two threads cannot wait for each other.
            self._release()
            self._line.append(ticket := object())
            try:
                if not self._changed.wait_for(
                    lambda: self._line[0] is ticket and self._has_room(needed_bytes),
                    self._thread.patience_seconds,
                ):
                    raise MemoryBusy("too many images are being decoded at the same time")
                self._used_bytes += needed_bytes
                self._thread.reserved_bytes = needed_bytes
            finally:
                self._line.remove(ticket)
                self._changed.notify_all()

    def _has_room(self, needed_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + needed_bytes <= self._shared_bytes

    def _release(self) -> None:
        """Free what this thread has reserved; call it with the lock."""
        if self._thread.reserved_bytes:
            self._used_bytes -= self._thread.reserved_bytes
            self._thread.reserved_bytes = 0
            self._changed.notify_all()


def _choose_total() -> tuple[int, int]:
    """Return the bytes that one image may take, and those that several may take together."""
    text = os.environ.get(VARIABLE)
    if text:
        try:
            gigabytes = float(text)
        except ValueError:
            gigabytes = math.nan
        if not 0 < gigabytes < math.inf:
            raise ConfigError(f"{VARIABLE} is {text!r}: it must be a positive number, such as 2")
        return (int(gigabytes * 1e9),) * 2
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # ranks on this machine
    total = max(_MIN_BYTES, free_host_bytes() // _SHARE // processes)
    return total, min(total, max(_MIN_SHARED_BYTES, _CORE_BYTES * usable_cores()))


MEMORY = DecodingMemory()
