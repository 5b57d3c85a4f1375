"""The parts of a rule: the facts it can use, the mistakes it yields, and its description."""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from onsight_lint.edits import Change
from onsight_lint.facts import Facts
from onsight_lint.loops import BatchLoop, find_loader_loops, find_plain_loops
from onsight_lint.modes import Gradients, Modes

TRAINING_CODE = r"[Ll]oader|dl\b|\.backward\(|\.eval\(\)|load_state_dict"
"""For `Rule.pattern`: found in every script that trains or evaluates."""


class Context(Facts):
    """The facts about a script that rules use; each is worked out when it is first needed."""

    @cached_property
    def loader_loops(self) -> list[BatchLoop]:
        """The loops over DataLoaders."""
        return find_loader_loops(self)

    @cached_property
    def batch_loops(self) -> list[BatchLoop]:
        """The loops over DataLoaders, and loops that train or evaluate without one."""
        return [*self.loader_loops, *find_plain_loops(self, self.loader_loops)]

    @cached_property
    def modes(self) -> Modes:
        """Where networks are in training or evaluation mode."""
        return Modes(self)

    @cached_property
    def gradients(self) -> Gradients:
        """Where gradients are off."""
        return Gradients(self, self.modes)


@dataclass(frozen=True)
class Mistake:
    """One place where a rule is broken."""

    node: ast.AST
    problem: str  # what is wrong here, in a few words without a full stop
    fixed: str  # the corrected lines, as indented here; `...` is a body that does not change
    why: str = ""  # the consequence, where it differs from the rule's
    changes: Sequence[Change] = ()  # what --fix does; none where a human must decide


@dataclass(frozen=True)
class Rule:
    """A kind of mistake that running the script does not reveal."""

    id: str  # as reports, comments and docs/lint.md name it; it never changes
    title: str  # the mistake in a few words
    why: str  # its consequence, in a sentence or two
    check: Callable[[Context], Iterator[Mistake]]
    pattern: str = ""  # a regular expression found in every script that can break the rule


@dataclass(frozen=True)
class Finding:
    """A mistake with its place in a file; lines and columns (of characters) count from 1."""

    file: Path
    line: int
    column: int
    end_line: int
    end_column: int  # just after the end
    rule: str  # the id of the rule
    problem: str
    why: str
    fixed: str
    changes: tuple[Change, ...] = ()

    @property
    def sort_key(self) -> tuple[str, int, int, str]:
        """The key that findings are sorted by."""
        return str(self.file), self.line, self.column, self.rule

    def facts(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        names = ("line", "column", "end_line", "end_column", "rule", "problem", "why", "fixed")
        values = {name: getattr(self, name) for name in names}
        return {"file": str(self.file), **values, "fixable": bool(self.changes)}
