"""Rule on sums and changed arrays that are computed and then discarded."""

import ast
from collections.abc import Iterator

from onsight_lint.edits import indented
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import key_of, keyword_value, word_set

_COPYING = word_set(  # functions that return a changed copy of their first argument
    "delete append insert concatenate vstack hstack stack cat clip clamp flip roll pad expand_dims "
    "squeeze unsqueeze reshape flatten transpose permute swapaxes moveaxis normalize"
)
_LIBRARIES = ("numpy", "torch", "torch.nn.functional")
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def _check(context: Context) -> Iterator[Mistake]:
    """`loss + penalty` or `np.delete(rows, 1)` as a statement."""
    for node in context.script.nodes(ast.Expr):
        is_in_function = not isinstance(context.script.function(node), ast.Module)
        # Elsewhere a notebook may have displayed the value.
        if is_in_function or any(context.script.loops_around(node)):
            changed = _unchanged_operand(context, node.value)
            if changed is not None:
                yield _mistake(context, node, changed)


RULE = Rule(
    id="discarded-result",
    title="A sum or a changed array is computed and discarded",
    why=(
        "Arithmetic, and functions such as np.delete and torch.cat, return a new value and leave "
        "their arguments unchanged. The code that follows still uses the old value."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _unchanged_operand(context: Context, value: ast.expr) -> ast.expr | None:
    """The expression that a discarded value was probably meant to replace."""
    match value:
        case ast.BinOp(left=left, op=op) if isinstance(op, _ARITHMETIC) and key_of(left):
            return left
        case ast.Call(args=[first, *_]) if _returns_copy(context, value) and key_of(first):
            return first
    return None


def _returns_copy(context: Context, call: ast.Call) -> bool:
    """Return whether a function of numpy or torch is called that returns a changed copy."""
    library, _, name = context.script.path_of(call.func).rpartition(".")
    is_in_place = keyword_value(call, "out") or keyword_value(call, "inplace")
    return library in _LIBRARIES and name in _COPYING and not is_in_place


def _mistake(context: Context, node: ast.Expr, changed: ast.expr) -> Mistake:
    code, name = context.script.code(node.value), context.script.code(changed)
    problem = f"the result of {code} is discarded, so {name} is unchanged"
    return Mistake(node, problem, indented(context.script, node, f"{name} = {code}"))
