"""Rule on sums and changed arrays that are computed and then discarded."""

import ast
from collections.abc import Iterator

from onsight_lint.calls import keyword
from onsight_lint.context import Context
from onsight_lint.fix import indented
from onsight_lint.flow import key_of
from onsight_lint.rule import Mistake, Rule
from onsight_lint.vocabulary import LOOPS, word_set

_CHANGES = word_set(  # functions that return a changed copy of their first argument
    "delete append insert concatenate vstack hstack stack cat clip clamp flip roll pad expand_dims "
    "squeeze unsqueeze reshape flatten transpose permute swapaxes moveaxis normalize"
)
_LIBRARIES = ("numpy.", "torch.", "torch.nn.functional.")
_SUMS = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def _check(context: Context) -> Iterator[Mistake]:
    """`loss + penalty` or `np.delete(rows, 1)` as a statement of its own."""
    for node in context.script.nodes(ast.Expr):
        if not isinstance(context.script.function(node), ast.Module) or _is_in_loop(context, node):
            yield from _of_statement(context, node)


def _of_statement(context: Context, node: ast.Expr) -> Iterator[Mistake]:
    code = context.script.code(node.value)
    match node.value:
        case ast.BinOp(left=left, op=op) if isinstance(op, _SUMS) and key_of(left):
            changed = left
        case ast.Call(args=[changed, *_]) if _is_copy(context, node.value) and key_of(changed):
            pass
        case _:
            return
    name = context.script.code(changed)
    fixed = indented(context.script, node, f"{name} = {code}")
    yield Mistake(node, f"the result of {code} is discarded: {name} stays as it was", fixed)


RULE = Rule(
    "discarded-result",
    "A sum or a changed array is computed and discarded",
    "Arithmetic, and functions such as np.delete and torch.cat, return something new and leave "
    "what they are given unchanged. What follows still uses the old value.",
    _check,
    LOOPS,
)


def _is_copy(context: Context, call: ast.Call) -> bool:
    """Whether a function of numpy or torch is called that returns a changed copy."""
    library, _, name = context.script.path_of(call.func).rpartition(".")
    in_place = keyword(call, "out") or keyword(call, "inplace")
    return f"{library}." in _LIBRARIES and name in _CHANGES and not in_place


def _is_in_loop(context: Context, node: ast.AST) -> bool:
    """Elsewhere in a module, an expression may be what a notebook displayed."""
    around = context.script.source(node).ancestors(node)
    return any(isinstance(one, (ast.For, ast.While)) for one in around)
