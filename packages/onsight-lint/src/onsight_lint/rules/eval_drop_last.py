"""Rule on evaluation by a loader that drops the last batch."""

import ast
from collections.abc import Iterator

from onsight_lint.edits import replace_node, show_changed
from onsight_lint.rule import Context, Mistake, Rule


def _check(context: Context) -> Iterator[Mistake]:
    """Loaders with drop_last=True that are only evaluated."""
    loops, loaders = context.loader_loops, context.loaders
    seen: set[ast.AST] = {
        call for loop in loops if loop.trains for call in loaders.creations(loop.loader)
    }
    for loop in loops:
        for call in loaders.creations(loop.loader) if loop.evaluates else []:
            drop = loaders.setting(call, "drop_last")
            if call in seen or drop is None or context.constants.value(drop) is not True:
                continue
            seen.add(call)
            if not loaders.divides_evenly(call):
                changes = [replace_node(context.script, drop, "False")]
                name = context.script.code(loop.loader)
                problem = f"{name} drops an incomplete last batch, whose rows are not evaluated"
                fixed = show_changed(context.script, drop, changes)
                yield Mistake(drop, problem, fixed, changes=changes)


RULE = Rule(
    id="eval-drop-last",
    title="Evaluation without the last batch",
    why=(
        "If the last batch is incomplete, its images are never evaluated: the result covers only "
        "part of the test images, and which part depends on the batch size."
    ),
    check=_check,
    pattern="drop_last",
)
