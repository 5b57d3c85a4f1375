"""Mends around statements: under a `with` or an `if`, with lines before or after, or removed."""

import ast
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from onsight_explain.mend.draft import CannotMend, Change, Draft
from onsight_explain.mend.layout import (
    block_under,
    line_after,
    line_before,
    line_end,
    line_start,
    on_own_lines,
    siblings,
    span,
)
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.names import evaluation_block, forward_block, in_own_names

Where = Literal["statement", "forward", "evaluation"]


@dataclass(frozen=True)
class Under(Mend):
    """A block under a line such as `with torch.no_grad():` or `if step % 50 == 0:`.

    where: the statement at the site; `forward`: the one that calls the network there, to the loss;
    `evaluation`: the whole loop of the evaluation there. opening: may name the {network} that is
    called there, and the type of its {device}.
    """

    opening: str
    where: Where = "statement"
    imports: ClassVar[tuple[str, ...]] = ("import torch",)

    @property
    def words(self) -> str:
        """The opening, and around what."""
        around = {
            "statement": "around this statement",
            "forward": "around the forward and the loss",
            "evaluation": "around the whole evaluation loop",
        }
        opening = self.opening.replace("{network}", "model").replace("{device}", "device.type")
        return f"{opening}  # {around[self.where]}"

    def apply(self, draft: Draft) -> None:
        """Write the opening, and indent the block."""
        assert self.site
        first, last = self._block(draft)
        draft.change(apart(draft, first, last))
        first, last = self._block(draft)
        opening = in_own_names(draft, self.site, self.opening)
        draft.change(block_under(draft, first, last, opening))

    def told(self, draft: Draft) -> str:
        """The opening in the script's own names, and the lines that it is around."""
        first, _ = self._block(draft)
        block = siblings(draft, first)  # of the new `with` or `if`
        opening = in_own_names(draft, self.site, self.opening)
        return f"{opening}  # around {span(draft, block[0], block[-1])}"

    def _block(self, draft: Draft) -> tuple[ast.stmt, ast.stmt]:
        assert self.site
        if self.where == "forward":
            return forward_block(draft, self.site)
        if self.where == "evaluation":
            return evaluation_block(draft, self.site)
        statement = draft.statement(self.site)
        return statement, statement


@dataclass(frozen=True)
class Lines(Mend):
    """Statements beside the one at a site."""

    text: str
    after: bool = field(default=False, kw_only=True)

    @property
    def words(self) -> str:
        """The statements."""
        return f"{self.text}  # {'after' if self.after else 'before'} this statement"

    def apply(self, draft: Draft) -> None:
        """Insert them."""
        assert self.site
        statement = draft.statement(self.site)
        draft.change(apart(draft, statement, statement))
        beside = line_after if self.after else line_before
        draft.change([beside(draft, draft.statement(self.site), self.text)])

    def told(self, draft: Draft) -> str:
        """The statements."""
        return self.text


@dataclass(frozen=True)
class Without(Mend):
    """The statement at a site, removed."""

    code: str

    @property
    def words(self) -> str:
        """The statement."""
        return f"remove {self.code}"

    def apply(self, draft: Draft) -> None:
        """Remove its lines; `pass` stays where its block would be empty."""
        assert self.site
        statement = draft.statement(self.site)
        draft.change(apart(draft, statement, statement))
        statement = draft.statement(self.site)
        if not isinstance(statement, ast.Expr | ast.Assign | ast.Delete | ast.AugAssign):
            raise CannotMend("it is not a plain statement")
        if len(siblings(draft, statement)) == 1:
            source = draft.source
            draft.change([(source.start(statement), source.end(statement), "pass")])
        else:
            draft.change([(line_start(draft, statement), line_end(draft, statement), "")])


def apart(draft: Draft, first: ast.stmt, last: ast.stmt) -> list[Change]:
    """The changes after which a block shares no line with other statements."""
    block = siblings(draft, first)
    return on_own_lines(draft, (block.index(first), block.index(last)), block)
