"""What a rule is made of: a description, and a check that finds mistakes in a Context."""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from onsight_lint.edits import Change
from onsight_lint.facts import Facts
from onsight_lint.loops import BatchLoop, find_loader_loops, find_plain_loops
from onsight_lint.modes import Gradients, Modes

TRAINING_CODE = r"[Ll]oader|dl\b|\.backward\(|\.eval\(\)|load_state_dict"
"""A `Rule.pattern` that matches every script that trains or evaluates."""

_MAX_LOOPS = 200  # considered in a script, because each is compared with all code around it


class Context(Facts):
    """What rules can ask about a script; each answer is computed on first use."""

    @cached_property
    def loader_loops(self) -> list[BatchLoop]:
        """The loops over DataLoaders."""
        return list(islice(find_loader_loops(self), _MAX_LOOPS))

    @cached_property
    def batch_loops(self) -> list[BatchLoop]:
        """The loops over DataLoaders, and loops that train or evaluate without one."""
        plain_loops = islice(find_plain_loops(self, self.loader_loops), _MAX_LOOPS)
        return [*self.loader_loops, *plain_loops]

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
    """Code that breaks a rule."""

    node: ast.AST
    problem: str  # what is wrong, as a short phrase without a full stop
    fixed: str  # the corrected lines with their indentation; `...` is an unchanged body
    why: str = ""  # the consequence, if it differs from Rule.why
    changes: Sequence[Change] = ()  # the edits of --fix; empty if a person must decide


@dataclass(frozen=True)
class Rule:
    """A kind of mistake that running the script does not reveal."""

    id: str  # used in reports, ignore comments and the reference page; never changes
    title: str  # names the mistake in a few words
    why: str  # the consequence, in one or two sentences
    check: Callable[[Context], Iterator[Mistake]]
    # A cheap filter: a script in whose text this regular expression has no match cannot break the
    # rule. ^ and $ match at line boundaries; "" matches every script.
    pattern: str = ""


@dataclass(frozen=True)
class Finding:
    """A mistake with its position in a file; lines and columns count from 1, in characters."""

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

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain values for JSON."""
        names = ("line", "column", "end_line", "end_column", "rule", "problem", "why", "fixed")
        values = {name: getattr(self, name) for name in names}
        return {"file": str(self.file), **values, "fixable": bool(self.changes)}
