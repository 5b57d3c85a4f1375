"""The lines of the user's own files that a call came from."""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from pydantic import BaseModel

_DEPTH = 100  # frames to look at, at most: those of frameworks are many
_UNNAMED = {"onsight", "torch"}  # packages that are no maker


class Site(BaseModel, frozen=True):
    """A line of a user's file, or of a notebook's cell."""

    file: str
    line: int

    def __str__(self) -> str:
        name = Path(self.file).name
        return f"{name}, line {self.line}" if self.is_in_cell else f"{name}:{self.line}"

    @property
    def is_in_cell(self) -> bool:
        """Whether it belongs to a notebook."""
        return ".ipynb, cell " in self.file


@dataclass(frozen=True)
class Made:
    """Where an object was made: the user's line, and what was called there.

    maker: the package that made it, called from that line; "" if the line itself did. call: the
    name of the function or class that the line calls.
    """

    site: Site | None = None
    maker: str = ""
    call: str = ""


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
                found.append(_site(frame.f_code, frame.f_lineno))
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
                return Made(_site(frame.f_code, frame.f_lineno), maker, _called(frame))
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
        return tuple(_site(code, line) for code, line in caller if self._owns(code))

    def _owns(self, code: CodeType) -> bool:
        if code not in self._is_own:
            name = code.co_filename
            self._is_own[code] = name.startswith(self.folder) and "site-packages" not in name
        return self._is_own[code]


def _site(code: CodeType, line: int) -> Site:
    return Site(file=code.co_filename, line=line)


def _called(frame: FrameType) -> str:
    """The name of what a frame is calling, by the text of its source; "" if it cannot be read."""
    positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    try:
        first, last, start, end = (int(one) for one in positions if one is not None)
        lines = Path(frame.f_code.co_filename).read_bytes().splitlines()[first - 1 : last]
        lines[-1] = lines[-1][:end]
        lines[0] = lines[0][start:]
        call = ast.parse(b"(" + b"\n".join(lines) + b")", mode="eval").body
    except (OSError, SyntaxError, ValueError, IndexError):
        return ""
    function = call.func if isinstance(call, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
