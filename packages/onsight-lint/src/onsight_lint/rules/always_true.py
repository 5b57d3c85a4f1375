"""Rule on settings that are true whatever the user or the machine says."""

import ast
from collections import Counter
from collections.abc import Iterator

from onsight_lint.edits import replace_node, show_changed, show_replaced
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import keyword_value, option_name

_WHY_ON = "The option is True by default and store_true sets it to True: it cannot be turned off."
_WHY_UNCALLED = "A function itself is always true; without the parentheses it is never called."


def _check(context: Context) -> Iterator[Mistake]:
    """`type=bool` of an option, and `if torch.cuda.is_available`."""
    destinations = Counter(map(option_name, context.values.calls("add_argument")))
    for call in context.values.calls("add_argument"):
        kind, default = keyword_value(call, "type"), keyword_value(call, "default")
        action = keyword_value(call, "action")
        values = [getattr(node, "value", None) for node in (action, default)]
        is_only = destinations[option_name(call)] == 1  # and no `--no-...` turns it off
        if values == ["store_true", True] and default is not None and call.args and is_only:
            problem = f"{context.script.code(call.args[0])} is on with and without the option"
            fixed = show_replaced(context.script, default, "False")
            yield Mistake(default, problem, fixed, _WHY_ON)
        if isinstance(kind, ast.Name) and context.script.path_of(kind) == "bool" and call.args:
            new = 'lambda text: text.lower() in ("true", "yes", "1")'
            problem = f"{context.script.code(call.args[0])} False is read as True"
            yield Mistake(kind, problem, show_replaced(context.script, kind, new))
    for node in context.script.nodes(ast.Attribute):
        path = context.script.path_of(node) if node.attr.startswith("is_") else ""
        if path.startswith("torch.") and _is_condition(context, node):
            new = f"{context.script.code(node)}()"
            problem = f"{path} is not called, so the condition is always true"
            changes = [replace_node(context.script, node, new)]
            fixed = show_changed(context.script, node, changes)
            yield Mistake(node, problem, fixed, _WHY_UNCALLED, changes)


RULE = Rule(
    id="always-true",
    title="A setting that is always true",
    why="bool() of any text that is not empty is True, so the option cannot be turned off.",
    check=_check,
    pattern=r"store_true|type\s*=\s*bool\b|torch\.[\w.]*\bis_\w+(?!\w|\()",
)


def _is_condition(context: Context, node: ast.expr) -> bool:
    """Return whether a value decides what runs, or is kept under a name that is never called."""
    match context.script.parent(node):
        case ast.If(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            return test is node
        case ast.BoolOp() | ast.UnaryOp():
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return not context.values.calls(name)
    return False
