"""Rule on `require_grad`, an attribute that torch does not read."""

import ast
from collections.abc import Iterator

from onsight_lint.edits import replace_node, show_changed
from onsight_lint.rule import Context, Mistake, Rule


def _check(context: Context) -> Iterator[Mistake]:
    """`parameter.require_grad = False`."""
    for node in context.script.nodes(ast.Attribute):
        if node.attr == "require_grad" and isinstance(node.ctx, ast.Store):
            new = f"{context.script.code(node.value)}.requires_grad"
            changes = [replace_node(context.script, node, new)]
            fixed = show_changed(context.script, node, changes)
            problem = f"{context.script.code(node)} sets an attribute that torch ignores"
            yield Mistake(node, problem, fixed, changes=changes)


RULE = Rule(
    id="requires-grad-misspelt",
    title="require_grad instead of requires_grad",
    why=(
        "Python accepts any attribute, but torch reads only requires_grad: layers that should be "
        "frozen keep training, or the other way round."
    ),
    check=_check,
    pattern="require_grad",
)
