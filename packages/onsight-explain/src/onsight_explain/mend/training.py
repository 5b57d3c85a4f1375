"""Mends of a training loop: its batch converted, something done once before it."""

import ast
from dataclasses import dataclass
from typing import ClassVar

from onsight_explain.mend.blocks import apart
from onsight_explain.mend.calls import appended
from onsight_explain.mend.draft import CannotMend, Draft
from onsight_explain.mend.layout import line_before
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.names import (
    batch_argument,
    before_training,
    in_own_names,
    loop_around,
    network_call,
)


@dataclass(frozen=True)
class Batch(Mend):
    """What the network is given at a site, put into something else: {} in the template."""

    template: str
    imports: ClassVar[tuple[str, ...]] = ("import torch",)

    @property
    def words(self) -> str:
        """The template around `images`."""
        return f"{self.template.replace('{}', 'images')}  # what the network is given"

    def apply(self, draft: Draft) -> None:
        """A name gets its new value in a line of its own; anything else is replaced in place."""
        assert self.site
        given = batch_argument(draft, self.site)
        before, after = self.template.split("{}")
        if isinstance(given, ast.Name):
            statement = draft.source.statement(given)
            draft.change(apart(draft, statement, statement))
            statement = draft.source.statement(batch_argument(draft, self.site))
            draft.change([line_before(draft, statement, self._line(given.id))])
            return
        start, end = draft.source.start(given), draft.source.end(given)
        if after.startswith(".") and not isinstance(
            given, ast.Call | ast.Attribute | ast.Subscript
        ):
            before, after = f"{before}(", f"){after}"
        draft.change([(start, start, before), (end, end, after)])

    def told(self, draft: Draft) -> str:
        """The line, or the call of the network."""
        assert self.site
        given = batch_argument(draft, self.site)
        if isinstance(given, ast.Name):
            return self._line(given.id)
        return ast.unparse(network_call(draft, self.site))

    def _line(self, name: str) -> str:
        return f"{name} = {self.template.replace('{}', name)}"


@dataclass(frozen=True)
class Once(Mend):
    """A statement before the training, which names the {network} called at the site."""

    text: str
    imports: ClassVar[tuple[str, ...]] = ("import torch",)

    @property
    def words(self) -> str:
        """The statement."""
        return f"{self.text.replace('{network}', 'model')}  # once, before the training"

    def apply(self, draft: Draft) -> None:
        """Insert it above the outermost loop in which the network stays the same."""
        assert self.site
        network = draft.source.code(network_call(draft, self.site).func)
        loop = before_training(draft, self.site, network)
        draft.change(apart(draft, loop, loop))
        loop = before_training(draft, self.site, network)
        draft.change([line_before(draft, loop, in_own_names(draft, self.site, self.text))])

    def told(self, draft: Draft) -> str:
        """The statement in the script's own names."""
        return f"{in_own_names(draft, self.site, self.text)}  # once, before the training"


@dataclass(frozen=True)
class NotBlocking(Mend):
    """The copies of a batch to the device, in the loop around the site, without waiting."""

    @property
    def words(self) -> str:
        """The keyword."""
        return "images.to(device, non_blocking=True)"

    def apply(self, draft: Draft) -> None:
        """Add the keyword to every `.to` and `.cuda` of what the loop takes from the loader."""
        copies = self._copies(draft)
        if not copies:
            raise CannotMend("the loop has no copies of its batch")
        draft.change([appended(draft, one, "non_blocking=True") for one in copies])

    def told(self, draft: Draft) -> str:
        """The copies."""
        return ", ".join(draft.source.code(one) for one in self._copies(draft))

    def _copies(self, draft: Draft) -> list[ast.Call]:
        assert self.site
        return copies_of(loop_around(draft, draft.statement(self.site)))


def copies_of(loop: ast.For) -> list[ast.Call]:
    """Calls of `.to` and `.cuda` on what a loop takes from its loader."""
    taken = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    calls = [one for part in loop.body for one in ast.walk(part) if isinstance(one, ast.Call)]
    return [
        one
        for one in calls
        if isinstance(one.func, ast.Attribute)
        and one.func.attr in ("to", "cuda")
        and _root(one.func.value) in taken
    ]


def _root(node: ast.AST) -> str:
    """The name that an expression such as `data[0]` begins with."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
