"""Mends that put one piece of code in the place of another."""

import ast
from dataclasses import dataclass
from typing import ClassVar

from onsight_explain.mend.calls import appended
from onsight_explain.mend.draft import CannotMend, Draft, called
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.whole import Definition

_NOT_EVALUATION = {"backward", "step", "train", "copy_", "add_", "mul_", "lerp_", "normal_"}


@dataclass(frozen=True)
class Replaced(Mend):
    """The statement at a site, as `ast.unparse` writes it, replaced by another."""

    old: str
    new: str

    @property
    def words(self) -> str:
        """The new statement."""
        return f"{self.new}  # in place of {self.old}"

    def apply(self, draft: Draft) -> None:
        """Replace it."""
        assert self.site
        statement = draft.statement(self.site)
        if ast.unparse(statement) != self.old:
            raise CannotMend("the line holds something else")
        source = draft.source
        draft.change([(source.start(statement), source.end(statement), self.new)])


@dataclass(frozen=True)
class InferenceModeEverywhere(Mend):
    """torch.inference_mode in place of torch.no_grad, around loops that only evaluate."""

    needs_site: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """The call."""
        return "torch.inference_mode() in place of torch.no_grad() around the evaluation"

    def apply(self, draft: Draft) -> None:
        """Rename it where it opens a block with a loop and nothing that trains."""
        found = []
        for block in draft.source.nodes:
            if isinstance(block, ast.FunctionDef):
                openings = block.decorator_list
            elif isinstance(block, ast.With):
                openings = [one.context_expr for one in block.items]
            else:
                continue
            if _evaluates(block):
                found += [one for opening in openings for one in _no_grads(opening)]
        if not found:
            raise CannotMend("no loop of the script stands under torch.no_grad()")
        source = draft.source
        draft.change(
            [(source.start(one), source.end(one), "torch.inference_mode") for one in found]
        )


_OPEN_SMALLER = """
def open_smaller(path):
    \"\"\"A JPEG file, decoded at the smallest scale whose sides are at least {side} pixels.\"\"\"
    with open(path, "rb") as file:
        image = PIL.Image.open(file)
        image.draft("RGB", ({side}, {side}))
        return image.convert("RGB")
"""


@dataclass(frozen=True)
class OpenSmaller(Mend):
    """JPEG files of torchvision's folder data sets, decoded smaller."""

    side: int
    needs_site: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """The call."""
        return f'image.draft("RGB", ({self.side}, {self.side})) after Image.open'

    def apply(self, draft: Draft) -> None:
        """Give every ImageFolder a loader that decodes as little as it needs."""
        nodes = [one for one in draft.source.nodes if isinstance(one, ast.Call)]
        calls = [one for one in nodes if called(one) == "ImageFolder"]
        if not calls or any(word.arg == "loader" for one in calls for word in one.keywords):
            raise CannotMend("the script opens its files by itself")
        draft.change([appended(draft, one, "loader=open_smaller") for one in calls])
        code = _OPEN_SMALLER.format(side=self.side)
        Definition(None, "open_smaller", code, ("import PIL.Image",)).apply(draft)


def _evaluates(block: ast.FunctionDef | ast.With) -> bool:
    calls = {called(one) for one in ast.walk(block) if isinstance(one, ast.Call)}
    has_loop = any(isinstance(one, ast.For) for one in ast.walk(block))
    return has_loop and not calls & _NOT_EVALUATION


def _no_grads(opening: ast.expr) -> list[ast.expr]:
    attributes = (one for one in ast.walk(opening) if isinstance(one, ast.Attribute))
    return [one for one in attributes if ast.unparse(one) == "torch.no_grad"]
