"""Rule on code that relies on a batch having its nominal size."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import fixed, replaced
from onsight_lint.flow import key_of, keys
from onsight_lint.loops import BatchLoop, is_batch_number, loop_nodes, loop_rows
from onsight_lint.rule import Mistake, Rule
from onsight_lint.source import own_nodes
from onsight_lint.vocabulary import LOOPS, Kind

_WHY = (
    "The last batch may have fewer rows than the batch size, and somebody may change the size in "
    "one place only: then the figure is wrong, or the script fails. Use the batch's own length."
)
_COUNTED = re.compile(r"correct|acc|loss|hit|error|right|top\d|match", re.IGNORECASE)
_SIZE_NAME = re.compile(r"(^|_)batch_?size$|^bs$|^bsz$", re.IGNORECASE)


def _check(context: Context) -> Iterator[Mistake]:
    """Totals, divisors, views and ranges that assume a fixed batch size."""
    seen: set[ast.AST] = set()
    for loop in context.batch_loops:
        short = context.loaders.last_may_be_short(loop.loader)
        for mistake, size in (*_in_loop(context, loop), *_divisors(context, loop)):
            in_two_places = isinstance(size, ast.Constant)  # wrong once the other is changed
            if size not in seen and (short or in_two_places):
                seen.add(size)
                yield mistake
    yield from _in_forward(context)


RULE = Rule(
    "hard-coded-batch-size", "A batch is taken to have its nominal size", _WHY, _check, LOOPS
)


def _in_loop(context: Context, loop: BatchLoop) -> Iterator[tuple[Mistake, ast.AST]]:
    rows = loop_rows(context, loop)
    for node in loop_nodes(loop):
        match node:
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                if _is_size(context, loop, value) and _is_divisor(context, loop, target):
                    yield _mistake(context, value, rows, "rows are counted as"), value
            case ast.Call(func=ast.Attribute(attr="view" | "reshape"), args=[size, rest, *_]):
                if _is_minus_one(rest) and _is_literal_size(context, loop, size):
                    yield _mistake(context, size, rows, "a batch is reshaped to"), size
            case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[size])):
                if _is_literal_size(context, loop, size) and _takes_rows(context, node):
                    yield (
                        _mistake(context, size, rows, "a loop over the rows of a batch counts to"),
                        size,
                    )


def _divisors(context: Context, loop: BatchLoop) -> Iterator[tuple[Mistake, ast.AST]]:
    """`correct / (len(loader) * 64)`."""
    scope = context.script.function(loop.node)
    gathered = {key_of(node.target) for node in loop_nodes(loop) if isinstance(node, ast.AugAssign)}
    for node in own_nodes(scope):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            continue
        names = {key_of(one) for one in ast.walk(node.left) if isinstance(one, ast.expr)}
        counted = {name for name in names & gathered if _COUNTED.search(name)}
        product = _followed(context, node.right)
        size = _size_in_product(context, loop, product) if counted else None
        if size is not None:
            new = f"len({context.script.code(loop.loader)}.dataset)"
            text = fixed(context.script, product, [replaced(product, new)])
            problem = f"{context.script.code(product)} is not the number of rows"
            yield Mistake(product, problem, text), size


def _followed(context: Context, expression: ast.expr) -> ast.expr:
    """What was assigned to a name in the same function, or the expression itself."""
    if isinstance(expression, ast.Name):
        bindings = context.script.scope(expression).reaching(expression)
        if len(bindings) == 1 and bindings[0].value is not None and not bindings[0].steps:
            return bindings[0].value
    return expression


def _size_in_product(context: Context, loop: BatchLoop, divisor: ast.expr) -> ast.expr | None:
    """The batch size, where a divisor is the number of batches times it."""
    if not isinstance(divisor, ast.BinOp) or not isinstance(divisor.op, ast.Mult):
        return None
    for one, other in ((divisor.left, divisor.right), (divisor.right, divisor.left)):
        if _is_size(context, loop, one) and _is_batches(context, loop, other):
            return one
    return None


def _in_forward(context: Context) -> Iterator[Mistake]:
    """`x.view(64, -1)` in the forward of a module."""
    sizes = {size for size in context.loaders.batch_sizes() if size >= 4}
    for source in context.script.sources:
        for node in source.all(ast.FunctionDef):
            if node.name != "forward":
                continue
            owner = context.script.parent(node)
            if not isinstance(owner, ast.ClassDef) or not context.kinds.is_module_class(owner):
                continue
            names = _made_of({argument.arg for argument in node.args.args[1:]}, node)
            for call in own_nodes(node):
                match call:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id=name), attr="view" | "reshape"),
                        args=[size, rest],
                    ) if name in names and _is_minus_one(rest):
                        value = context.constants.fixed(size)
                        if isinstance(value, int) and value in sizes:
                            text = f"{name}.size(0)"
                            yield _mistake(context, size, text, "a batch is reshaped to")


def _made_of(names: set[str], forward: ast.FunctionDef) -> set[str]:
    """The names in a forward that are computed from its inputs."""
    found = set(names)
    for node in own_nodes(forward):  # in the order of the source
        if isinstance(node, ast.Assign) and found & keys(node.value):
            found |= {key for target in node.targets for key in keys(target)}
    return found


def _mistake(context: Context, size: ast.expr, rows: str, what: str) -> Mistake:
    text = fixed(context.script, size, [replaced(size, rows)])
    problem = f"{what} {context.script.code(size)}, whatever the size of the batch"
    return Mistake(size, problem, text)


def _is_size(context: Context, loop: BatchLoop, value: ast.expr) -> bool:
    """Whether a value is the batch size of a loop's loader, by its name or its number."""
    if _SIZE_NAME.search(last_name(value)) and context.values.origins(value):
        return not _is_measured(context, value)
    return _is_literal_size(context, loop, value)


def _is_literal_size(context: Context, loop: BatchLoop, value: ast.expr) -> bool:
    """Whether a value is a literal equal to the batch size, or a name given to it."""
    number = context.constants.fixed(value)
    if not isinstance(number, int) or isinstance(number, bool) or number < 2:
        return bool(_SIZE_NAME.search(last_name(value))) and not _is_measured(context, value)
    for call in context.loaders.made(loop.loader):
        size = context.loaders.setting(call, "batch_size")
        if size is not None and context.constants.fixed_or_default(size) == number:
            return True
    return False


def _is_measured(context: Context, value: ast.expr) -> bool:
    """Whether a batch size was read from the batch: `batch_size = labels.size(0)`."""
    if isinstance(value, ast.Attribute) and not context.values.members(value):
        return last_name(value.value) not in ("args", "opt", "cfg", "config", "hparams", "self")
    return any(
        not isinstance(origin.node, (ast.Constant, ast.Attribute))
        for origin in context.values.origins(value)
    )


def _is_divisor(context: Context, loop: BatchLoop, target: ast.expr) -> bool:
    """Whether correct answers or losses are divided by a total."""
    key = key_of(target)
    for node in own_nodes(context.script.function(loop.node)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            words = (last_name(one) for one in ast.walk(node.left))
            if key_of(node.right) == key and any(_COUNTED.search(word) for word in words):
                return True
    return False


def _is_batches(context: Context, loop: BatchLoop, expression: ast.expr) -> bool:
    if isinstance(expression, ast.Call) and last_name(expression.func) == "len":
        counted = expression.args[0] if expression.args else expression
        same = context.script.code(counted) == context.script.code(loop.loader)
        return same or context.kinds.kind(counted) is Kind.LOADER
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
        one = isinstance(expression.right, ast.Constant) and expression.right.value == 1
        return one and is_batch_number(loop, expression.left)
    if isinstance(expression, ast.Name):
        return any(
            origin.node is not expression
            and isinstance(origin.node, ast.Call)
            and _is_batches(context, loop, origin.node)
            for origin in context.values.origins(expression)
        )
    return False


def _is_minus_one(expression: ast.expr) -> bool:
    return (
        isinstance(expression, ast.UnaryOp)
        and isinstance(expression.op, ast.USub)
        and isinstance(expression.operand, ast.Constant)
        and expression.operand.value == 1
    )


def _takes_rows(context: Context, loop: ast.For) -> bool:
    """Whether a loop over numbers indexes rows of tensors with them."""
    return any(
        isinstance(node, ast.Subscript)
        and key_of(node.slice) == key_of(loop.target) != ""
        and context.kinds.kind(node.value) is Kind.TENSOR
        for statement in loop.body
        for node in (statement, *own_nodes(statement))
    )
