"""Find the lines of the user's files that led to a call."""

import os
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

_MAX_FRAMES = 100  # frames to search; frameworks nest deeply
_OWN_FOLDER = f"{Path(__file__).parents[1]}{os.sep}"  # a checkout may be inside the user's folder
_NEVER_MAKERS = {"onsight_explain", "torch"}

Caller = tuple[tuple[CodeType, int], ...]  # the lines of the calling functions, innermost first


@dataclass(frozen=True)
class Site:
    """A line of a user's file."""

    file: str
    line: int
    # Line and column (in bytes, as in `ast`) where the observed call ends, if known.
    end: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class ObjectOrigin:
    """Where an object was created."""

    site: Site | None = None  # the user's line
    maker: str = ""  # package that the line calls to create it; "" if the line itself does


class Sites:
    """Finds lines of the files in a folder, ignoring this package and packages installed there."""

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.join(folder.resolve(), "")  # ends with one slash
        self._is_own: dict[str, bool] = {}

    def here(self) -> Site | None:
        """Return the innermost of the user's lines that led to this call."""
        return self.origin().site

    def origin(self, made: object = None) -> ObjectOrigin:
        """Return the origin of the object whose constructor calls this method.

        made: the object. A library that only wraps the constructor, as Lightning does for loaders,
            is then not taken for its maker.
        """
        own_package = type(made).__module__.partition(".")[0]
        maker = ""
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if self.owns(frame.f_code.co_filename):
                return ObjectOrigin(_site_of(frame), maker)
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if package not in _NEVER_MAKERS and not (
                made is not None and package != own_package and _first_argument(frame) is made
            ):
                maker = package
            frame = frame.f_back
        return ObjectOrigin(maker=maker)

    def caller(self) -> Caller:
        """Return the two innermost calling lines, cheaply; `of` converts them to sites later."""
        inner = sys._getframe(2)
        outer = inner.f_back
        first = inner.f_code, inner.f_lineno
        return (first, (outer.f_code, outer.f_lineno)) if outer else (first,)

    def of(self, caller: Caller) -> tuple[Site, ...]:
        """Return the user's lines among those of a caller, innermost first."""
        lines = ((code.co_filename, line) for code, line in caller)
        return tuple(Site(file=file, line=line) for file, line in lines if self.owns(file))

    def owns(self, file: str) -> bool:
        """Return whether a file is the user's, and neither an installed package's nor Onsight's."""
        if file not in self._is_own:
            is_package = "site-packages" in file or file.startswith(_OWN_FOLDER)
            self._is_own[file] = file.startswith(self.folder) and not is_package
        return self._is_own[file]


def _first_argument(frame: FrameType) -> object:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _site_of(frame: FrameType) -> Site:
    """Return the call that a frame is making, with its end."""
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    _, line, _, column = next(positions, (None, None, None, None))
    end = None if line is None or column is None else (line, column)
    return Site(file=frame.f_code.co_filename, line=frame.f_lineno, end=end)
