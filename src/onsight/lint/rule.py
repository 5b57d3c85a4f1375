"""A reading rule: one kind of mistake, why it matters, and the function that finds it."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from onsight.lint.context import Context


@dataclass(frozen=True)
class Mistake:
    """One place where a rule is broken.

    problem: what the line does; fixed: the corrected source lines, with the user's own names and
    indentation; a line `...` stands for a body that does not change. why: where it differs from
    the rule's.
    """

    node: ast.AST
    problem: str
    fixed: str
    why: str = ""


@dataclass(frozen=True)
class Rule:
    """A kind of mistake that running the script does not reveal.

    id: as reports, comments and docs/lint.md name it, for ever; title: the mistake in a few words;
    why: its consequence, in a sentence or two; check: finds its places in a script.
    """

    id: str
    title: str
    why: str
    check: Callable[[Context], Iterator[Mistake]]
