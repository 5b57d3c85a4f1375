"""Ends a script's process in time, and at once if nobody waits for it any more."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from onsight_explain.process.channel import Channel

_LOOK_SECONDS = 0.5  # between two looks at the clock


class Leash:
    """A thread that watches the clock and the other end of the channel, if there is one.

    at_limit: called in that thread when the time is over.
    """

    def __init__(self, channel: Channel | None, at_limit: Callable[[], NoReturn]) -> None:
        self.channel, self.at_limit = channel, at_limit
        self._until = float("inf")
        threading.Thread(target=self._watch, name="onsight-leash", daemon=True).start()

    def lengthen(self, seconds: float) -> None:
        """Allow so many seconds from now; infinity while the process waits to go on."""
        self._until = time.monotonic() + seconds

    def _watch(self) -> None:
        poll = select.poll()
        if self.channel:
            poll.register(self.channel.end, 0)  # only whether the other end is gone
        while True:
            if poll.poll(_LOOK_SECONDS * 1000):
                end_with_children()
            if time.monotonic() > self._until:
                self.at_limit()


def end_with_children() -> NoReturn:
    """End this process and its group, to which its workers belong, if it leads one."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
