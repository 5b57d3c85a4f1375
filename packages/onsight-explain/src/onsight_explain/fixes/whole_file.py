"""Fixes of a file as a whole: statements at its start, new definitions, calls wherever they are."""

import ast
from dataclasses import dataclass

from onsight_explain.fixes.draft import (
    CannotFix,
    Draft,
    called_name,
    insert_after,
    insert_before,
    line_end,
    replace_node,
)
from onsight_explain.fixes.fix import Fix

_DEFINITIONS_AND_BLOCKS = ast.ClassDef | ast.FunctionDef | ast.For | ast.While | ast.With
_TRAINING_CALLS = {"backward", "step", "train", "copy_", "add_", "mul_", "lerp_", "normal_"}


@dataclass(frozen=True)
class AddAtStart(Fix):
    """Adds a statement below the script's first imports. Its site is None."""

    text: str
    needs_site = False

    @property
    def instruction(self) -> str:
        return f"{self.text}  # at the start"

    def apply(self, draft: Draft) -> None:
        """Insert it below the last import of the first block of imports."""
        _insert_at_start(draft, self.text)


@dataclass(frozen=True)
class SetThreads(Fix):
    """Sets the number of threads that torch computes with. Its site is None."""

    count: int
    imports = ("import torch",)
    needs_site = False

    @property
    def instruction(self) -> str:
        return f"torch.set_num_threads({self.count})  # at the start"

    def apply(self, draft: Draft) -> None:
        """Change the script's calls, or add one at its start."""
        calls = draft.source.all(ast.Call)
        calls = [call for call in calls if called_name(call) == "set_num_threads" and call.args]
        if calls:
            draft.change([replace_node(draft, call.args[0], f"{self.count}") for call in calls])
        else:
            AddAtStart(None, f"torch.set_num_threads({self.count})").apply(draft)


@dataclass(frozen=True)
class AddDefinition(Fix):
    """Adds a class or function below the script's imports, after the code that uses it was changed.

    Its site is in the file using it.
    """

    name: str
    code: str
    needed_imports: tuple[str, ...] = ()  # such as `import torch`
    needs_site = False

    @property
    def instruction(self) -> str:
        return self.code.strip()

    @property
    def merge_key(self) -> object:
        return self.name

    def apply(self, draft: Draft) -> None:
        """Insert it, with two empty lines around it, unless the same code is there already."""
        if self.name in _bound_names(draft.source.tree):
            if self.code.strip() in draft.text.replace(draft.newline, "\n"):
                return
            raise CannotFix(f"the script has something else called {self.name}")
        for statement in self.needed_imports:
            add_import(draft, statement, user=self.name)
        last_import = _find_last_import(draft, user=self.name)
        if last_import is None:
            raise CannotFix("the script has no imports to put it below")
        at = line_end(draft, last_import)
        following = draft.text[at:]
        empty = len(following) - len(following.lstrip("\r\n"))
        after = max(0, 2 - empty // len(draft.newline)) if following.strip() else 0
        before = "" if not at or draft.text[at - 1] == "\n" else "\n"
        draft.change([(at, at, f"{before}\n\n{self.code.strip()}\n" + "\n" * after)])


@dataclass(frozen=True)
class UseReshape(Fix):
    """Replaces `view` by `reshape` in every forward: `view` fails on images with channels last."""

    needs_site = False
    instruction = "reshape(...) in place of view(...), which fails with channels last"

    def apply(self, draft: Draft) -> None:
        ends = [draft.source.end(call.func) for call in find_views(draft.source.tree)]
        draft.change([(end - len("view"), end, "reshape") for end in ends])


@dataclass(frozen=True)
class UseInferenceMode(Fix):
    """Replaces torch.no_grad by torch.inference_mode around loops that call nothing that trains."""

    needs_site = False
    instruction = "torch.inference_mode() in place of torch.no_grad() around the evaluation"

    def apply(self, draft: Draft) -> None:
        """Replace it in decorators and `with` statements of blocks that evaluate."""
        names = []
        for block in draft.source.all(ast.FunctionDef, ast.With):
            if _only_evaluates(block):
                is_function = isinstance(block, ast.FunctionDef)
                openings = block.decorator_list if is_function else block.items
                names += [name for opening in openings for name in _find_no_grads(opening)]
        if not names:
            raise CannotFix("no evaluation loop of the script is under torch.no_grad()")
        draft.change([replace_node(draft, name, "torch.inference_mode") for name in names])


def add_import(draft: Draft, statement: str, user: str = "") -> None:
    """Add an import such as `import torch` to the script's imports, unless its name is bound.

    user: a name that needs it; it is added above the first statement with that name.
    """
    if statement.split()[-1].partition(".")[0] not in _bound_names(draft.source.tree):
        _insert_at_start(draft, statement, user)


def find_views(tree: ast.Module) -> list[ast.Call]:
    """Return the calls of `view` with sizes, not with a dtype, in functions named forward."""
    nodes = list(ast.walk(tree))
    forwards = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    calls = [n for forward in forwards for n in ast.walk(forward) if isinstance(n, ast.Call)]
    return [call for call in calls if _is_view(call)]


def reshape_views(tree: ast.Module) -> dict[str, object]:
    """Make the change of UseReshape in a syntax tree; it needs no names in the script's globals."""
    for call in find_views(tree):
        assert isinstance(call.func, ast.Attribute)
        call.func.attr = "reshape"
    return {}


def _insert_at_start(draft: Draft, text: str, user: str = "") -> None:
    place, insert = _find_last_import(draft, user), insert_after
    if place is None:
        place = draft.source.tree.body[0]
        is_docstring = isinstance(place, ast.Expr) and isinstance(place.value, ast.Constant)
        insert = insert_after if is_docstring else insert_before
    draft.change([insert(draft, place, text)])


def _find_last_import(draft: Draft, user: str = "") -> ast.stmt | None:
    """Return the last import before the script's first definition, block or use of a name."""
    last = None
    for statement in draft.source.tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            last = statement
        elif isinstance(statement, _DEFINITIONS_AND_BLOCKS) or _uses(statement, user):
            break
    return last


def _uses(statement: ast.stmt, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))


def _bound_names(tree: ast.Module) -> set[str]:
    """Return all names that a file binds, in any scope."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _is_view(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "view" or call.keywords:
        return False
    is_dtype = len(call.args) == 1 and ast.unparse(call.args[0]).startswith("torch.")
    return bool(call.args) and not is_dtype


def _only_evaluates(block: ast.FunctionDef | ast.With) -> bool:
    """Return whether a block has a loop and calls none of _TRAINING_CALLS."""
    calls = {called_name(node) for node in ast.walk(block) if isinstance(node, ast.Call)}
    has_loop = any(isinstance(node, ast.For) for node in ast.walk(block))
    return has_loop and not calls & _TRAINING_CALLS


def _find_no_grads(opening: ast.AST) -> list[ast.expr]:
    attributes = (node for node in ast.walk(opening) if isinstance(node, ast.Attribute))
    return [node for node in attributes if ast.unparse(node) == "torch.no_grad"]
