"""A reading rule: one kind of mistake, why it matters, and the function that finds it."""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from onsight_lint.context import Context
from onsight_lint.fix import Edit


@dataclass(frozen=True)
class Mistake:
    """One place where a rule is broken.

    problem: what the line does; fixed: the corrected source lines, with the user's own names and
    indentation; a line `...` stands for a body that does not change. why: where it differs from
    the rule's. mend: the edits that certainly correct it, for --fix; none if a human must look.
    """

    node: ast.AST
    problem: str
    fixed: str
    why: str = ""
    mend: Sequence[Edit] = ()


@dataclass(frozen=True)
class Rule:
    """A kind of mistake that running the script does not reveal.

    id: as reports, comments and docs/lint.md name it, for ever; title: the mistake in a few words;
    why: its consequence, in a sentence or two; check: finds its places in a script; words: a
    regular expression found in every script that can break the rule.
    """

    id: str
    title: str
    why: str
    check: Callable[[Context], Iterator[Mistake]]
    words: str = ""
