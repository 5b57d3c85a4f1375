"""A mend of the statement of a training loop that reads values: run only every so many steps."""

import ast
from dataclasses import dataclass

from onsight_explain.mend.blocks import apart
from onsight_explain.mend.draft import CannotMend, Change, Draft, called
from onsight_explain.mend.layout import block_under, span
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.names import free_name, loop_around
from onsight_explain.script.source import gated_statement


@dataclass(frozen=True)
class Rarely(Mend):
    """The statement around the site, which reads values, at the first of every so many steps."""

    every: int

    @property
    def words(self) -> str:
        """The condition."""
        return (
            f"if step % {self.every} == 0:  # around this statement; or sum up on the device and "
            "read once per epoch"
        )

    def apply(self, draft: Draft) -> None:
        """Write the condition; its loop counts the steps from now on, if it did not."""
        statement = self._statement(draft)
        draft.change([*apart(draft, statement, statement), *self._counted(draft)])
        statement = self._statement(draft)
        opening = f"if {self._condition(draft)}:"
        if sums := _sums(statement):
            opening = f"# {', '.join(sums)}: of every {self.every}th step only\n{opening}"
        draft.change(block_under(draft, statement, statement, opening))

    def told(self, draft: Draft) -> str:
        """The condition in the script's own names, and what it changes in its sums."""
        gate = self._statement(draft)
        assert isinstance(gate, ast.If)
        sums = _sums(gate)
        where = f"if {self._condition(draft)}:  # around {span(draft, gate.body[0], gate.body[-1])}"
        return f"{where}; {', '.join(sums)}: of these steps only" if sums else where

    def _statement(self, draft: Draft) -> ast.stmt:
        assert self.site
        found = gated_statement(draft.source.tree, draft.line_now(self.site.line))
        if found is None:
            raise CannotMend("it is not a statement of a training loop that can run rarely")
        return found

    def _counted(self, draft: Draft) -> list[Change]:
        """The changes after which the loop counts its steps."""
        loop = loop_around(draft, self._statement(draft))
        if _counter(loop):
            return []
        source, step = draft.source, free_name(draft, "step")
        target, steps = source.code(loop.target), source.code(loop.iter)
        if isinstance(loop.target, ast.Tuple) and not target.startswith("("):
            target = f"({target})"
        return [
            (source.start(loop.target), source.end(loop.target), f"{step}, {target}"),
            (source.start(loop.iter), source.end(loop.iter), f"enumerate({steps})"),
        ]

    def _condition(self, draft: Draft) -> str:
        counter = _counter(loop_around(draft, self._statement(draft)))
        assert counter
        name, start = counter
        return f"{name} % {self.every} == {start % self.every}"


def _counter(loop: ast.For) -> tuple[str, int] | None:
    """The name that counts a loop's steps, and its first value."""
    calls = [one for one in ast.walk(loop.iter) if isinstance(one, ast.Call)]
    outer = [one for one in calls if called(one) == "enumerate"]
    if not outer or not isinstance(loop.target, ast.Tuple):
        return None
    given = [*outer[0].args[1:], *(one.value for one in outer[0].keywords)]
    name = loop.target.elts[0]
    if not isinstance(name, ast.Name):
        return None
    if not given:
        return name.id, 0
    start = given[0].value if isinstance(given[0], ast.Constant) else None
    return (name.id, start) if isinstance(start, int) else None


def _sums(statement: ast.stmt) -> list[str]:
    """The names that a statement sums up in."""
    return sorted(
        {
            one.target.id
            for one in ast.walk(statement)
            if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name)
        }
    )
