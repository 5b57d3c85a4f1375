"""Rule on evaluation by a loader that drops the last batch."""

import ast
from collections.abc import Iterator

from onsight_lint.context import Context
from onsight_lint.fix import fixed, replaced
from onsight_lint.rule import Mistake, Rule

_WHY = (
    "The images of the last batch are never evaluated if it is smaller than the others: the "
    "figure is about a part of the test images, and about another part for another batch size."
)


def _check(context: Context) -> Iterator[Mistake]:
    """Loaders with drop_last=True that are only evaluated."""
    loops = context.batch_loops
    training = {call for one in loops if one.trains for call in context.loaders.made(one.loader)}
    seen: set[ast.AST] = set(training)
    for loop in loops:
        for call in context.loaders.made(loop.loader) if loop.evaluates else []:
            drop = context.loaders.setting(call, "drop_last")
            if call in seen or drop is None or context.constants.fixed(drop) is not True:
                continue
            seen.add(call)
            if context.loaders.divides_evenly(call):
                continue
            edits = [replaced(drop, "False")]
            text = fixed(context.script, drop, edits)
            words = context.script.code(loop.loader)
            problem = f"the last rows of {words} are not evaluated if they fill no batch"
            yield Mistake(drop, problem, text, mend=edits)


RULE = Rule("eval-drop-last", "Evaluation without the last batch", _WHY, _check, "drop_last")
