"""Mends of the file as a whole: statements at its start, definitions, and words about its start."""

import ast
from dataclasses import dataclass
from typing import ClassVar

from onsight_explain.mend.draft import CannotMend, Draft, called
from onsight_explain.mend.layout import line_after, line_before
from onsight_explain.mend.mend import Mend

_IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class AtStart(Mend):
    """A statement after the script's first imports, before anything else; site: None."""

    text: str
    needs_site: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """The statement."""
        return f"{self.text}  # at the start"

    @property
    def place(self) -> object:
        """The statement, wherever it was asked for."""
        return self.text

    def apply(self, draft: Draft) -> None:
        """Insert it below the last import of the first block of imports."""
        last = _last_import(draft)
        if last is None:
            first = draft.source.tree.body[0]
            is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            beside = line_after if is_docstring else line_before
            draft.change([beside(draft, first, self.text)])
        else:
            draft.change([line_after(draft, last, self.text)])


@dataclass(frozen=True)
class SetThreads(Mend):
    """The number of threads that torch computes with; site: None."""

    count: int
    imports: ClassVar[tuple[str, ...]] = ("import torch",)
    needs_site: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """The call."""
        return f"torch.set_num_threads({self.count})  # at the start"

    def apply(self, draft: Draft) -> None:
        """Change the script's own calls; one without any gets one at its start."""
        calls = [one for one in draft.source.nodes if isinstance(one, ast.Call)]
        own = [one.args[0] for one in calls if called(one) == "set_num_threads" and one.args]
        if own:
            source = draft.source
            draft.change([(source.start(one), source.end(one), f"{self.count}") for one in own])
            return
        AtStart(None, f"torch.set_num_threads({self.count})").apply(draft)


@dataclass(frozen=True)
class Definition(Mend):
    """A class or function for the script's own use, below its imports.

    site: in the file that needs it; name: that it defines; needs: imports that its code needs,
    such as `import torch`.
    """

    name: str
    code: str
    needs: tuple[str, ...] = ()
    needs_site: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """Its code."""
        return self.code.strip()

    @property
    def place(self) -> object:
        """The name."""
        return self.name

    def apply(self, draft: Draft) -> None:
        """Insert it, with two empty lines around it, unless it is there."""
        taken = _module_names(draft.source.tree)
        if self.name in taken:
            if self.code.strip() in draft.text.replace(draft.newline, "\n"):
                return
            raise CannotMend(f"the script has something else called {self.name}")
        last = _last_import(draft)
        if last is None:
            raise CannotMend("the script has no imports to put it below")
        at, _, _ = line_after(draft, last, "")
        following = draft.text[at:]
        empty = len(following) - len(following.lstrip("\r\n"))
        after = max(0, 2 - empty // len(draft.newline)) if following.strip() else 0
        before = "" if not at or draft.text[at - 1] == "\n" else "\n"
        draft.change([(at, at, f"{before}\n\n{self.code.strip()}\n" + "\n" * after)])
        for statement in self.needs:
            need_import(draft, statement)

    def told(self, draft: Draft) -> str:
        """Its first lines say enough: the rest is in the mended file."""
        return self.words


@dataclass(frozen=True)
class Outside(Mend):
    """Something to do when the script is started, which its text cannot; site: None."""

    text: str
    is_text: ClassVar[bool] = False
    needs_site: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """What to do."""
        return self.text

    def apply(self, draft: Draft) -> None:
        """Nothing: it is said at the top of the mended file."""


@dataclass(frozen=True)
class Advice(Mend):
    """A change that is said at its place, because no text edit can make it with certainty."""

    text: str

    @property
    def words(self) -> str:
        """What to do."""
        return self.text

    def apply(self, draft: Draft) -> None:
        """It is always left to the user."""
        raise CannotMend("left to you")


def need_import(draft: Draft, statement: str) -> None:
    """An import such as `import torch`, with the script's own, unless its name is there."""
    if statement.split()[-1].partition(".")[0] not in _module_names(draft.source.tree):
        AtStart(None, statement).apply(draft)


def _last_import(draft: Draft) -> ast.stmt | None:
    """The last import before the script's first definition or block."""
    last = None
    for one in draft.source.tree.body:
        if isinstance(one, _IMPORTS):
            last = one
        elif isinstance(one, ast.ClassDef | ast.FunctionDef | ast.For | ast.While | ast.With):
            break
    return last


def _module_names(tree: ast.Module) -> set[str]:
    """The names that the statements of a file bind."""
    names: set[str] = set()
    for one in ast.walk(tree):
        if isinstance(one, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in one.names}
        elif isinstance(one, ast.ClassDef | ast.FunctionDef):
            names.add(one.name)
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            names.add(one.id)
    return names
