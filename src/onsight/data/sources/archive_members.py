"""The members of an archive: which may be used, and under which path."""

import re
from dataclasses import dataclass, field

from onsight.data.index import Problem
from onsight.data.sources.class_folders import is_hidden
from onsight.errors import DataError

MOST_MEMBERS = 5_000_000

_SEPARATORS = re.compile(r"[/\\]")
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:[/\\]")


@dataclass
class Members:
    """Paths of the usable members in the archive's order, and what was refused."""

    paths: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    hidden: int = 0
    _seen: set[str] = field(default_factory=set)

    def admit(self, name: str, refusal: str = "") -> bool:
        """Take in a member that is no folder; refusal: why its kind cannot be used.

        Returns whether it is the last of the paths now. Raises DataError at too many.
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
        if len(self.paths) > MOST_MEMBERS:
            raise DataError(
                f"the archive has more than {MOST_MEMBERS:,} members; "
                "unpack it and give the folder instead"
            )


def _danger(name: str, path: str) -> str:
    """Why a name must not be trusted, or nothing."""
    if _ABSOLUTE.match(name):
        return "absolute path"
    if ".." in _SEPARATORS.split(name):
        return "leads out of the archive ('..')"
    return "" if path else "has no name"
