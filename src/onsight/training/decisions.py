"""Records the decisions of a run that depend on time or memory, so that they can be repeated."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError

from onsight.errors import ConfigError
from onsight.files import disk_errors
from onsight.ranks.world import World
from onsight.report.run_files import DECISIONS, read_decisions
from onsight.text import shorten

CANDIDATES, MEMBERS = "candidates", "members"  # what a run was to train, and what it has trained
_HEADER = "run"  # the name of the line with what all decisions depend on
_REPEATED = "repeated run"  # the name of the line with the folder of a run that is repeated

Value = TypeVar("Value")
COUNT: TypeAdapter[int] = TypeAdapter(NonNegativeInt)
ANSWER = TypeAdapter(bool)
NAMES = TypeAdapter(list[str])
SECONDS = TypeAdapter(FiniteFloat)
_FIELDS = TypeAdapter(dict[str, Any])
_FOLDER: TypeAdapter[Path | None] = TypeAdapter(Path | None)


class Decisions:
    """Decisions by name, one JSON line each, written before they are carried out.

    A decision on record is repeated. Any other is made by the first rank, for all. Lines are not
    fsynced: after a power failure, the copy in the last checkpoint is used. Anybody may have
    written the record: whoever reads a decision says what values it can have, and any other raises
    ConfigError.

    Args:
        folder: Of the run, where the record is written; None for no record.
        is_timed: Whether the run has a deadline; otherwise only what memory decided is recorded.
        repeated_run: The folder of a run whose decisions are to be repeated; that on record, if
            this run is resumed.
    """

    def __init__(
        self,
        folder: Path | None = None,
        world: World | None = None,
        *,
        is_timed: bool = False,
        repeated_run: Path | None = None,
    ) -> None:
        self.folder = folder
        self.world = world or World()
        self.is_timed = is_timed
        self.repeated_run = repeated_run
        self.header: Mapping[str, Any] | None = None
        self.values = self._read(folder) if folder else {}
        if _REPEATED in self.values:
            self.repeated_run = self._check(_REPEATED, self.values[_REPEATED], _FOLDER)
            if self.repeated_run and not self._read(self.repeated_run):
                raise ConfigError(f"the run repeats {self.repeated_run / DECISIONS}, which is gone")

    def of_part(self, folder: Path) -> "Decisions":
        """Return the decisions of one of the run's trainings, whose folder is in this one."""
        repeated = None
        if self.repeated_run and self.folder:
            repeated = self.repeated_run / folder.relative_to(self.folder)
        return Decisions(folder, self.world, is_timed=self.is_timed, repeated_run=repeated)

    @property
    def path(self) -> Path:
        """The path of the record that is repeated."""
        return (self.repeated_run or self.folder or Path()) / DECISIONS

    def record_repeated(self) -> None:
        """Record which run is repeated, if any, for when this one is resumed."""
        if self.repeated_run:
            self.record(_REPEATED, str(self.repeated_run.absolute()))

    def recall(self, name: str, kind: TypeAdapter[Value]) -> Value | None:
        """Return the decision on record here or of the run to repeat; None if there is none.

        Before `begin`, it is not known whether that run's images are the same.
        """
        values = self.values
        if name not in values and self.repeated_run:
            values = self._read(self.repeated_run)
        return self._check(name, values[name], kind) if name in values else None

    def begin(self, header: Mapping[str, Any]) -> list[str]:
        """Take over the decisions of the run to repeat, if they depend on the same.

        Args:
            header: What decisions depend on, such as the images.

        Returns:
            What differs, by its name in the header; then nothing is repeated.
        """
        self.header = header
        if self.repeated_run:
            recorded = self._read(self.repeated_run)
            recorded.pop(_REPEATED, None)
            before = self._check(_HEADER, recorded.get(_HEADER, dict(header)), _FIELDS)
            differing = [name for name, value in header.items() if before.get(name) != value]
            if differing:
                self.repeated_run = None
                if _REPEATED in self:
                    self.record(_REPEATED, None)
                return differing
            self.update(recorded)
        return []

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def decide(self, name: str, make: Callable[[], object], kind: TypeAdapter[Value]) -> Value:
        """Return the decision on record, or make and record it; the same on every rank.

        Args:
            name: The name of the decision.
            make: Returns the decision, as JSON can express it.
            kind: The values that it can have.
        """
        if name in self.values:
            return self._check(name, self.values[name], kind)
        if not self.is_timed:
            return kind.validate_python(make())
        value = json.loads(self.world.broadcast(name, lambda: json.dumps(make())))
        self.record(name, value)
        return kind.validate_python(value)

    def record(self, name: str, value: Any) -> None:
        """Record a decision, in place of an earlier one of this name."""
        if self.header and _HEADER not in self.values and name != _HEADER:
            self.record(_HEADER, dict(self.header))
        self.values[name] = value
        if self.folder and self.world.is_main:
            _append_line(self.folder / DECISIONS, json.dumps({"decision": name, "value": value}))

    def update(self, values: Mapping[str, Any]) -> None:
        """Add the decisions of another copy that are missing here, where later ones may be."""
        for name, value in values.items():
            if name not in self.values:
                self.record(name, value)

    def named(self, start: str, kind: TypeAdapter[Value]) -> dict[str, Value]:
        """Return the decisions whose names start like this."""
        return {
            name: self._check(name, value, kind)
            for name, value in self.values.items()
            if name.startswith(start)
        }

    def _check(self, name: str, value: object, kind: TypeAdapter[Value]) -> Value:
        try:
            return kind.validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, ["value", *problem["loc"]]))
            raise ConfigError(
                f"{self.path} has been changed: of the decision '{name}', {where} is "
                f"{shorten(repr(problem['input']), 100)}: {problem['msg'].lower()}"
            ) from error

    def _read(self, folder: Path) -> dict[str, Any]:
        """Return the decisions that the first rank reads, on every rank."""
        text = self.world.broadcast("decisions", lambda: json.dumps(read_decisions(folder)))
        values: dict[str, Any] = json.loads(text)
        return values


def _append_line(path: Path, line: str) -> None:
    """Append a line, after a line break if a full disk has truncated the previous one."""
    with disk_errors(path), path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read() == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())


def is_complete(decisions: Mapping[str, Any]) -> bool:
    """Return whether training finished, if it was divided into segments or networks."""
    if CANDIDATES in decisions and MEMBERS not in decisions:
        return False
    if _REPEATED in decisions and _HEADER not in decisions:  # nothing is copied yet
        return False
    segments = [value for name, value in decisions.items() if name.startswith("segment ")]
    return not segments or None in segments
