"""Short messages between `explain` and the processes that run a script: JSON lines on a socket."""

import json
import socket
from collections.abc import Sequence
from typing import Any

_MOST_BYTES = 1 << 16
_MOST_FILES = 4


class Closed(Exception):
    """The other side has ended."""


class Channel:
    """One end; strictly question and answer, so that one message is under way at most."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    @classmethod
    def pair(cls) -> tuple["Channel", "Channel"]:
        """Two connected ends."""
        one, other = socket.socketpair()
        return cls(one), cls(other)

    @classmethod
    def inherited(cls, descriptor: int) -> "Channel":
        """The end that the parent process left open here."""
        end = socket.socket(fileno=descriptor)
        end.set_inheritable(False)  # by what a script starts
        return cls(end)

    def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Send plain values, and open files by their descriptors. Raises Closed."""
        line = json.dumps(message).encode() + b"\n"
        try:
            if files:
                socket.send_fds(self.end, [line], files)
            else:
                self.end.sendall(line)
        except OSError as error:
            raise Closed from error

    def receive(self, seconds: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """The next message and its files. Raises Closed, or TimeoutError after so many seconds."""
        self.end.settimeout(seconds)
        line, files = b"", list[int]()
        while not line.endswith(b"\n"):
            try:
                part, got, _, _ = socket.recv_fds(self.end, _MOST_BYTES, _MOST_FILES)
            except TimeoutError:
                raise
            except OSError as error:
                raise Closed from error
            if not part:
                raise Closed
            line, files = line + part, files + got
        return json.loads(line), files

    def close(self) -> None:
        """Close this end, which ends what waits at the other."""
        self.end.close()
