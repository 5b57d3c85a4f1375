"""Rule on options of the command line that nothing reads."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.edits import indented
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import last_name, option_name, word_set

_OTHER_READERS = word_set("parse_known_args parse_intermixed_args add_subparsers set_defaults")
_ON_PURPOSE = re.compile(r"SUPPRESS|deprecated|ignored|unused|not used|compatib|legacy", re.I)
_SET_BY_LAUNCHERS = word_set("local_rank node_rank f")  # by torchrun's forerunner and notebooks


def _check(context: Context) -> Iterator[Mistake]:
    """`--config` without `args.config`, where `args` is only read by its attributes."""
    parses, calls = context.values.calls("parse_args"), context.values.calls("add_argument")
    if len(parses) != 1 or any(context.values.calls(name) for name in _OTHER_READERS):
        return
    namespace = _namespace(context, parses[0])
    attributes = context.script.nodes(ast.Attribute)
    read = {node.attr for node in attributes if last_name(node.value) == namespace}
    options = {option_name(call): call for call in calls if not _is_for_others(context, call)}
    unread = {name: call for name, call in options.items() if name and name not in read}
    for name, call in unread.items() if namespace and 2 * len(unread) <= len(calls) else ():
        line = f"{name} = {namespace}.{name}  # use it, or remove the option"
        fixed = indented(context.script, context.script.statement(call), line)
        problem = f"{namespace}.{name} is never read, so the option has no effect"
        yield Mistake(call, problem, fixed)


RULE = Rule(
    id="option-never-read",
    title="An option that is never read",
    why="Setting the option changes nothing, and the result is taken for one of that setting.",
    check=_check,
    pattern=r"\.parse_args\(",
)


def _is_for_others(context: Context, call: ast.Call) -> bool:
    """Return whether an option need not have an effect: a launcher passes it, or old scripts."""
    is_ignored = _ON_PURPOSE.search(context.script.code(call)) is not None
    return is_ignored or option_name(call) in _SET_BY_LAUNCHERS


def _namespace(context: Context, parse: ast.Call) -> str:
    """The name of the parsed options; "" if anything may read them all at once."""
    statement = context.script.parent(parse)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    is_module = isinstance(context.script.function(parse), ast.Module)
    if not isinstance(target, ast.Name) or (is_module and not context.batch_loops):
        return ""  # the script may be a module whose options others read
    for node in context.script.nodes(ast.Name):
        if node.id == target.id and isinstance(node.ctx, ast.Load):
            use = context.script.parent(node)
            if not isinstance(use, ast.Attribute) or use.attr.startswith("_"):
                return ""
    imported = (alias for node in context.script.nodes(ast.ImportFrom) for alias in node.names)
    return "" if any(alias.name == target.id for alias in imported) else target.id
