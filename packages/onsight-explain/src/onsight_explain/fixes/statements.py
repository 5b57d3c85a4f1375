"""Fixes of statements: indent under a `with` or `if`, replace, remove, run rarely."""

import ast
from dataclasses import dataclass
from typing import Literal

from onsight_explain.fixes.draft import (
    CannotFix,
    Draft,
    block_of,
    called_name,
    describe_lines,
    indent_under,
    line_end,
    line_start,
    put_on_own_lines,
    replace_node,
)
from onsight_explain.fixes.fix import Fix
from onsight_explain.fixes.locate import (
    fill_names,
    find_enclosing_loop,
    find_evaluation_loop,
    find_forward_block,
    unused_name,
)
from onsight_explain.script.source import gated_statement
from onsight_lint.edits import Change


@dataclass(frozen=True)
class IndentUnder(Fix):
    """Puts statements under a line such as `with torch.no_grad():`."""

    opening: str  # with {device} as in `fill_names`
    # From the network's call to the loss, or the whole evaluation loop around the site.
    extent: Literal["forward", "evaluation"]
    imports = ("import torch",)

    @property
    def instruction(self) -> str:
        block = "the forward and the loss"
        if self.extent == "evaluation":
            block = "the whole evaluation loop"
        return f"{self.opening.replace('{device}', 'device.type')}  # around {block}"

    def apply(self, draft: Draft) -> None:
        assert self.site
        draft.change(put_on_own_lines(draft, *self._find_block(draft)))
        first, last = self._find_block(draft)
        opening = fill_names(draft, self.site, self.opening)
        draft.change(indent_under(draft, first, last, opening))

    def summary(self, draft: Draft) -> str:
        """Return the opening line in the script's names, and the lines that it encloses."""
        first, _ = self._find_block(draft)
        block = block_of(draft, first)  # block of the new `with` or `if`
        opening = fill_names(draft, self.site, self.opening)
        return f"{opening}  # around {describe_lines(draft, block[0], block[-1])}"

    def _find_block(self, draft: Draft) -> tuple[ast.stmt, ast.stmt]:
        """Return the first and the last statement."""
        assert self.site
        if self.extent == "forward":
            return find_forward_block(draft, self.site)
        loop = find_evaluation_loop(draft, self.site)
        return loop, loop


@dataclass(frozen=True)
class ReplaceStatement(Fix):
    """Replaces the statement at a site."""

    old: str  # formatted by `ast.unparse`
    new: str

    @property
    def instruction(self) -> str:
        return f"{self.new}  # in place of {self.old}"

    def apply(self, draft: Draft) -> None:
        """Replace the statement. Raises CannotFix unless it is `old`."""
        assert self.site
        statement = draft.find_statement(self.site)
        if ast.unparse(statement) != self.old:
            raise CannotFix("the line contains another statement")
        draft.change([replace_node(draft, statement, self.new)])


@dataclass(frozen=True)
class RemoveStatement(Fix):
    """Removes the statement at a site."""

    description: str

    @property
    def instruction(self) -> str:
        return f"remove {self.description}"

    def apply(self, draft: Draft) -> None:
        """Remove the statement's lines, or replace it by `pass` if its block would be empty."""
        assert self.site
        statement = draft.find_statement(self.site)
        draft.change(put_on_own_lines(draft, statement, statement))
        statement = draft.find_statement(self.site)
        if not isinstance(statement, ast.Expr | ast.Assign | ast.Delete | ast.AugAssign):
            raise CannotFix("it is not a plain statement")
        if len(block_of(draft, statement)) == 1:
            draft.change([replace_node(draft, statement, "pass")])
        else:
            draft.change([(line_start(draft, statement), line_end(draft, statement), "")])


@dataclass(frozen=True)
class RunEveryNthStep(Fix):
    """Runs the statement around a site, which reads values or logs, only every Nth step."""

    every: int

    @property
    def instruction(self) -> str:
        return (
            f"if step % {self.every} == 0:  # around this statement; or sum up on the device and "
            "read once per epoch"
        )

    def apply(self, draft: Draft) -> None:
        """Insert the condition, and let the loop count its steps if it does not yet."""
        statement = self._find_statement(draft)
        draft.change(
            [*put_on_own_lines(draft, statement, statement), *self._add_step_counter(draft)]
        )
        statement = self._find_statement(draft)
        opening = f"if {self._condition(draft)}:"
        if sums := _accumulated_names(statement):
            opening = f"# {', '.join(sums)}: of every {self.every}th step only\n{opening}"
        draft.change(indent_under(draft, statement, statement, opening))

    def summary(self, draft: Draft) -> str:
        """Return the condition in the script's names, and the sums that it changes."""
        gate = self._find_statement(draft)
        assert isinstance(gate, ast.If)
        sums = _accumulated_names(gate)
        lines = describe_lines(draft, gate.body[0], gate.body[-1])
        condition = f"if {self._condition(draft)}:  # around {lines}"
        return f"{condition}; {', '.join(sums)}: of these steps only" if sums else condition

    def _find_statement(self, draft: Draft) -> ast.stmt:
        assert self.site
        statement = gated_statement(draft.source.tree, draft.current_line(self.site.line))
        if statement is None:
            raise CannotFix("it is not a statement of a training loop that can run rarely")
        return statement

    def _add_step_counter(self, draft: Draft) -> list[Change]:
        loop = find_enclosing_loop(draft, self._find_statement(draft))
        if _find_step_counter(loop):
            return []
        source, step = draft.source, unused_name(draft, "step")
        target, steps = source.code(loop.target), source.code(loop.iter)
        if isinstance(loop.target, ast.Tuple) and not target.startswith("("):
            target = f"({target})"
        return [
            replace_node(draft, loop.target, f"{step}, {target}"),
            replace_node(draft, loop.iter, f"enumerate({steps})"),
        ]

    def _condition(self, draft: Draft) -> str:
        counter = _find_step_counter(find_enclosing_loop(draft, self._find_statement(draft)))
        assert counter
        name, start = counter
        return f"{name} % {self.every} == {start % self.every}"


def _find_step_counter(loop: ast.For) -> tuple[str, int] | None:
    """Return the name of a loop's `enumerate` counter, and its first value."""
    calls = [node for node in ast.walk(loop.iter) if isinstance(node, ast.Call)]
    calls = [call for call in calls if called_name(call) == "enumerate"]
    if not calls or not isinstance(loop.target, ast.Tuple):
        return None
    starts = [*calls[0].args[1:], *(keyword.value for keyword in calls[0].keywords)]
    name = loop.target.elts[0]
    if not isinstance(name, ast.Name):
        return None
    if not starts:
        return name.id, 0
    start = starts[0].value if isinstance(starts[0], ast.Constant) else None
    return (name.id, start) if isinstance(start, int) else None


def _accumulated_names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement updates in place, as in `total += loss`."""
    return sorted(
        {
            node.target.id
            for node in ast.walk(statement)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
        }
    )
