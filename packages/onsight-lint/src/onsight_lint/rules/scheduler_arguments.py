"""Rule on schedulers of the learning rate that are called with the wrong arguments."""

import ast
from collections.abc import Iterator

from onsight_lint.edits import replace_node, show_changed, show_replaced
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import argument_values, call_owner, key_of

_SCHEDULERS = "torch.optim.lr_scheduler."
_WHY_METRIC = "The call raises a TypeError: only the metric tells whether to lower the rate."


def _check(context: Context) -> Iterator[Mistake]:
    """`verbose=True`, and `scheduler.step()` of ReduceLROnPlateau."""
    code, path_of = context.script.code, context.script.path_of
    for node in context.script.nodes(ast.keyword):
        call = context.script.parent(node)
        if node.arg == "verbose" and isinstance(call, ast.Call) and not _is_guarded(context, call):
            path = path_of(call.func)
            if path.startswith(_SCHEDULERS):
                kept = [code(item) for item in (*call.args, *call.keywords) if item is not node]
                new = f"{code(call.func)}({', '.join(kept)})"
                changes = [replace_node(context.script, call, new)]
                fixed = show_changed(context.script, call, changes)
                problem = f"PyTorch 2.7 removed verbose from {path.removeprefix(_SCHEDULERS)}"
                has_comment = "#" in code(call)  # which the change would remove
                yield Mistake(node, problem, fixed, changes=() if has_comment else changes)
    steps = [(call, call_owner(call)) for call in context.values.calls("step")]
    given = {key_of(owner) for call, owner in steps if owner and argument_values(call)}
    for call, owner in steps:
        if owner is not None and not argument_values(call) and key_of(owner) not in given:
            made = [getattr(item.node, "func", item.node) for item in context.values.origins(owner)]
            if set(map(path_of, made)) == {f"{_SCHEDULERS}ReduceLROnPlateau"}:
                fixed = show_replaced(context.script, call, f"{code(call.func)}(val_loss)")
                yield Mistake(call, f"{code(call)} lacks the metric", fixed, _WHY_METRIC)


RULE = Rule(
    id="scheduler-arguments",
    title="A scheduler is called with the wrong arguments",
    why="The call raises a TypeError. Print get_last_lr() of the scheduler instead.",
    check=_check,
    pattern=r"\bverbose\s*=|ReduceLROnPlateau\(",
)


def _is_guarded(context: Context, call: ast.Call) -> bool:
    """Return whether code around a call handles several versions of PyTorch."""
    return any(
        isinstance(parent, ast.Try)
        or (isinstance(parent, ast.If) and "version" in context.script.code(parent.test))
        for parent in context.script.ancestors(call)
    )
