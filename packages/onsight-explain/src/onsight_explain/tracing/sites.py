"""The lines of the user's own files that a call came from."""

import os
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

_DEPTH = 100  # frames to look at, at most: those of frameworks are many
_OWN = f"{Path(__file__).parents[1]}{os.sep}"  # a checkout may lie in the user's folder
_UNNAMED = {"onsight_explain", "torch"}  # packages that are no maker


@dataclass(frozen=True)
class Site:
    """A line of a user's file.

    end: line and column (in bytes, as in `ast`) where the call that was seen ends, if known.
    """

    file: str
    line: int
    end: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class Made:
    """Where an object was made: the user's line, and what was called there.

    maker: the package that made it, called from that line; "" if the line itself did.
    """

    site: Site | None = None
    maker: str = ""


Caller = tuple[tuple[CodeType, int], ...]  # the lines of the calling functions, innermost first


class Sites:
    """Finds lines of files in a folder, but not of this package or of packages installed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = f"{folder.resolve()}/"
        self._is_own: dict[str, bool] = {}

    def here(self, most: int = 1) -> tuple[Site, ...]:
        """At most so many of the user's lines that led to this call, the innermost first."""
        found: list[Site] = []
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_DEPTH):
            if frame is None or len(found) == most:
                break
            if self._owns(frame.f_code):
                found.append(_site_of(frame))
            frame = frame.f_back
        return tuple(found)

    def made(self) -> Made:
        """Where the object is made whose constructor called this."""
        maker = ""
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_DEPTH):
            if frame is None:
                break
            if self._owns(frame.f_code):
                return Made(_site_of(frame), maker)
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            maker = maker if package in _UNNAMED else package
            frame = frame.f_back
        return Made(maker=maker)

    def caller(self) -> Caller:
        """The two innermost calling lines, for `of` to look at later: fast, for frequent calls."""
        inner = sys._getframe(2)
        outer = inner.f_back
        first = inner.f_code, inner.f_lineno
        return (first, (outer.f_code, outer.f_lineno)) if outer else (first,)

    def of(self, caller: Caller) -> tuple[Site, ...]:
        """The user's lines among those of a caller, the innermost first."""
        return tuple(
            Site(file=code.co_filename, line=line) for code, line in caller if self._owns(code)
        )

    def _owns(self, code: CodeType) -> bool:
        name = code.co_filename  # code objects of two files may be equal
        if name not in self._is_own:
            self._is_own[name] = name.startswith(self.folder) and not is_package(name)
        return self._is_own[name]


def is_package(file: str) -> bool:
    """Whether a file belongs to a package, installed or Onsight itself, and is not the user's."""
    return "site-packages" in file or file.startswith(_OWN)


def _site_of(frame: FrameType) -> Site:
    """The call that a frame is making, with its end."""
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    _, line, _, column = next(positions, (None, None, None, None))
    end = None if line is None or column is None else (line, column)
    return Site(file=frame.f_code.co_filename, line=frame.f_lineno, end=end)
