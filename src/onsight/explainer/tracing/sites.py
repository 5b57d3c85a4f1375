"""The lines of the user's own files that a call came from."""

import sys
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

from pydantic import BaseModel

_DEPTH = 40  # frames to look at, at most


class Site(BaseModel, frozen=True):
    """A line of a user's file.

    end: line and column (in bytes, as in `ast`) where the call that was seen ends, if known.
    """

    file: str
    line: int
    end: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


Caller = tuple[tuple[CodeType, int], ...]  # the lines of the calling functions, innermost first


class Sites:
    """Finds lines of files in a folder, but not of packages installed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = f"{folder.resolve()}/"
        self._is_own: dict[CodeType, bool] = {}

    def here(self, most: int = 1) -> tuple[Site, ...]:
        """At most so many of the user's lines that led to this call, the innermost first."""
        found: list[Site] = []
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_DEPTH):
            if frame is None or len(found) == most:
                break
            if self._owns(frame.f_code):
                found.append(
                    Site(
                        file=frame.f_code.co_filename,
                        line=frame.f_lineno,
                        end=_end_of_call(frame),
                    )
                )
            frame = frame.f_back
        return tuple(found)

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
        if code not in self._is_own:
            name = code.co_filename
            self._is_own[code] = name.startswith(self.folder) and "site-packages" not in name
        return self._is_own[code]


def _end_of_call(frame: FrameType) -> tuple[int, int] | None:
    """Where the call ends that a frame is making."""
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    _, line, _, column = next(positions, (None, None, None, None))
    return None if line is None or column is None else (line, column)
