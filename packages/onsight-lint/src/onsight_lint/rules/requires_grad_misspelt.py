"""Rule on `require_grad`, an attribute that torch does not know."""

import ast
from collections.abc import Iterator

from onsight_lint.context import Context
from onsight_lint.fix import fixed, replaced
from onsight_lint.rule import Mistake, Rule

_WHY = (
    "Python accepts any attribute, and torch reads only requires_grad: the layers that should be "
    "frozen go on learning, or the other way round."
)


def _check(context: Context) -> Iterator[Mistake]:
    """`parameter.require_grad = False`."""
    for node in context.script.nodes(ast.Attribute):
        if node.attr == "require_grad" and isinstance(node.ctx, ast.Store):
            edits = [replaced(node, f"{context.script.code(node.value)}.requires_grad")]
            text = fixed(context.script, node, edits)
            problem = f"{context.script.code(node)} sets an attribute that torch does not know"
            yield Mistake(node, problem, text, mend=edits)


RULE = Rule(
    "requires-grad-misspelt", "require_grad instead of requires_grad", _WHY, _check, "require_grad"
)
