"""What the twin has seen: launches, waits of the host with their lines, and faults."""

import sys
import sysconfig
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

_HERE = str(Path(__file__).parent)
_LIBRARIES = (
    str(Path(torch.__file__).parent),
    sysconfig.get_path("stdlib"),
    _HERE,
)


@dataclass(frozen=True)
class Wait:
    """The host waited for the device: what made it, and the line of the user's code."""

    cause: str
    place: str

    def __str__(self) -> str:
        return f"{self.place}: {self.cause}"


@dataclass
class Record:
    """Launches by operation, waits in order, and faults, which no test may leave unread."""

    launches: Counter[str] = field(default_factory=Counter)
    waits: list[Wait] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Forget everything."""
        self.launches.clear()
        self.waits.clear()
        self.faults.clear()

    def launch(self, name: str) -> None:
        """Count a launch."""
        self.launches[name] += 1

    def wait(self, cause: str) -> None:
        """Note that the host waits here."""
        self.waits.append(Wait(cause, user_line()))


def user_line() -> str:
    """FILE:LINE of the innermost frame outside of torch, the standard library and the twin."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith((*_LIBRARIES, "<")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
