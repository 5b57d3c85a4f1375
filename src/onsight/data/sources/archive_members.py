"""The members of an archive: which can be used, and under which path."""

import re
from dataclasses import dataclass, field

from onsight.data.index import Problem
from onsight.data.sources.class_folders import is_hidden
from onsight.errors import DataError
from onsight.limits import ARCHIVE_MEMBERS

_SEPARATORS = re.compile(r"[/\\]")
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:[/\\]")


@dataclass
class Members:
    """The paths of usable members in the archive's order, and what was rejected."""

    paths: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    hidden: int = 0
    _seen: set[str] = field(default_factory=set)

    def admit(self, name: str, refusal: str = "") -> bool:
        """Add a member that is not a folder; refusal: why its kind cannot be used.

        Returns whether it was added to the paths. Raises DataError if there are too many.
        """
        parts = [part for part in name.split("/") if part not in ("", ".")]
        path = "/".join(parts)
        reason = _danger(name, path)
        if not reason and any(is_hidden(part) for part in parts):
            self.hidden += 1
            return False
        reason = reason or refusal or self._repetition(path)
        if reason:
            self.problems.append(Problem(name, "scan", reason))
            return False
        self._seen.add(path)
        self.paths.append(path)
        self._check_count()
        return True

    def _repetition(self, path: str) -> str:
        return "appears twice in the archive" if path in self._seen else ""

    def _check_count(self) -> None:
        if len(self.paths) > ARCHIVE_MEMBERS:
            raise DataError(
                f"the archive has more than {ARCHIVE_MEMBERS:,} members; "
                "unpack it and give the folder instead"
            )


def _danger(name: str, path: str) -> str:
    """Why a name is unsafe, or nothing."""
    if _ABSOLUTE.match(name):
        return "absolute path"
    if ".." in _SEPARATORS.split(name):
        return "leads out of the archive ('..')"
    return "" if path else "has no name"
