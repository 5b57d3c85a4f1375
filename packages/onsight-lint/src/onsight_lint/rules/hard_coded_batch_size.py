"""Rule on code that relies on a batch having its nominal size."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.batch_means import is_batch_count, is_batch_mean
from onsight_lint.edits import show_replaced
from onsight_lint.kinds import Kind
from onsight_lint.loops import BatchLoop, batch_length, loop_nodes
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import block_nodes, expressions_in, key_of, keys_in, last_name, own_nodes

_COUNTED_NAME = re.compile(r"correct|acc|loss|hit|error|right|top\d|match", re.IGNORECASE)
_SIZE_NAME = re.compile(r"(^|_)(batch_?size|bsz?)$", re.IGNORECASE)
_OPTIONS = frozenset({"args", "opt", "cfg", "config", "hparams"})
_MIN_SIZE_IN_FORWARD = 4  # smaller numbers are too often something else

_COUNTED = "each batch is counted as {} rows"
_RESHAPED = "a batch is reshaped to {} rows"
_LOOPED = "a loop assumes {} rows in a batch"


def _check(context: Context) -> Iterator[Mistake]:
    """Totals, divisors, views and ranges that assume a fixed batch size."""
    seen: set[ast.AST] = set()
    for loop in context.loader_loops:
        is_short = context.loaders.last_may_be_short(loop.loader)
        for mistake, size in (*_in_loop(context, loop), *_divisors(context, loop)):
            is_in_two_places = isinstance(size, ast.Constant)  # wrong once the other is changed
            if size not in seen and (is_short or is_in_two_places):
                seen.add(size)
                yield mistake
    yield from _in_forward(context)


RULE = Rule(
    id="hard-coded-batch-size",
    title="A batch is assumed to have its nominal size",
    why=(
        "The last batch may have fewer rows, and the batch size may be changed in one place only: "
        "then the result is wrong, or the script fails. Use the length of the batch itself."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _in_loop(context: Context, loop: BatchLoop) -> Iterator[tuple[Mistake, ast.AST]]:
    rows = batch_length(context, loop)
    for node in loop_nodes(loop):
        match node:
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                if _is_size(context, loop, value) and _is_divisor(context, loop, target):
                    yield _mistake(context, value, rows, _COUNTED), value
            case ast.Call(func=ast.Attribute(attr="update"), args=[value, size]):  # a meter
                if _is_size(context, loop, size) and is_batch_mean(context, value):
                    yield _mistake(context, size, rows, _COUNTED), size
            case ast.Call(func=ast.Attribute(attr="view" | "reshape"), args=[size, rest, *_]):
                if ast.unparse(rest) == "-1" and _is_literal_size(context, loop, size):
                    yield _mistake(context, size, rows, _RESHAPED), size
            case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[size])):
                if _is_literal_size(context, loop, size) and _indexes_rows(context, node):
                    yield _mistake(context, size, rows, _LOOPED), size


def _divisors(context: Context, loop: BatchLoop) -> Iterator[tuple[Mistake, ast.AST]]:
    """`correct / (len(loader) * 64)`."""
    scope = context.script.function(loop.node)
    summed = {key_of(node.target) for node in loop_nodes(loop) if isinstance(node, ast.AugAssign)}
    for node in own_nodes(scope):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            continue
        names = {key_of(part) for part in expressions_in(node.left)}
        counted = {name for name in names & summed if _COUNTED_NAME.search(name)}
        product = context.script.assigned_value(node.right) or node.right
        size = _size_in_product(context, loop, product) if counted else None
        if size is not None:
            new = f"len({context.script.code(loop.loader)}.dataset)"
            problem = f"{context.script.code(product)} is not the number of rows"
            yield Mistake(product, problem, show_replaced(context.script, product, new)), size


def _size_in_product(context: Context, loop: BatchLoop, divisor: ast.expr) -> ast.expr | None:
    """The batch size, where a divisor is the number of batches times it."""
    if not isinstance(divisor, ast.BinOp) or not isinstance(divisor.op, ast.Mult):
        return None
    for factor, other in ((divisor.left, divisor.right), (divisor.right, divisor.left)):
        if _is_size(context, loop, factor) and is_batch_count(context, loop, other):
            return factor
    return None


def _in_forward(context: Context) -> Iterator[Mistake]:
    """`x.view(64, -1)` in the forward of a module."""
    sizes = {size for size in context.loaders.batch_sizes() if size >= _MIN_SIZE_IN_FORWARD}
    for node in context.script.nodes(ast.FunctionDef):
        if node.name != "forward" or not context.kinds.is_module_class(context.script.parent(node)):
            continue
        names = _derived_names(node)
        for call in own_nodes(node):
            match call:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="view" | "reshape"),
                    args=[size, rest],
                ) if name in names and ast.unparse(rest) == "-1":
                    if context.constants.value(size) in sizes:
                        yield _mistake(context, size, f"{name}.size(0)", _RESHAPED)


def _derived_names(forward: ast.FunctionDef) -> set[str]:
    """The names of a forward's inputs, and of what it computes from them."""
    names = {argument.arg for argument in forward.args.args[1:]}
    for node in own_nodes(forward):  # in source order
        if isinstance(node, ast.Assign) and names & keys_in(node.value):
            names |= {key for target in node.targets for key in keys_in(target)}
    return names


def _mistake(context: Context, size: ast.expr, rows: str, assumed: str) -> Mistake:
    problem = f"{assumed.format(context.script.code(size))}, whatever its actual size"
    return Mistake(size, problem, show_replaced(context.script, size, rows))


def _is_size(context: Context, loop: BatchLoop, value: ast.expr) -> bool:
    """Return whether a value is the batch size of a loop's loader, by its name or its number."""
    if _SIZE_NAME.search(last_name(value)) and context.values.origins(value):
        return not _is_measured(context, value)
    return _is_literal_size(context, loop, value)


def _is_literal_size(context: Context, loop: BatchLoop, value: ast.expr) -> bool:
    """Return whether a value is a literal equal to the batch size, or a name given to it."""
    number = context.constants.value(value)
    if not isinstance(number, int) or isinstance(number, bool) or number < 2:
        return bool(_SIZE_NAME.search(last_name(value))) and not _is_measured(context, value)
    for call in context.loaders.creations(loop.loader):
        size = context.loaders.setting(call, "batch_size")
        if size is not None and context.constants.value_or_default(size) == number:
            return True
    return False


def _is_measured(context: Context, value: ast.expr) -> bool:
    """Return whether a batch size was read from the batch: `batch_size = labels.size(0)`."""
    if isinstance(value, ast.Attribute) and not context.values.attribute_values(value):
        owners = set(key_of(value.value).lower().split("."))
        return not owners & _OPTIONS and owners != {"self"}
    return any(
        origin.steps or not isinstance(origin.node, (ast.Constant, ast.Attribute))
        for origin in context.values.origins(value)
    )


def _is_divisor(context: Context, loop: BatchLoop, target: ast.expr) -> bool:
    """Return whether correct answers or losses are divided by a total."""
    key = key_of(target)
    for node in own_nodes(context.script.function(loop.node)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            names = map(last_name, ast.walk(node.left))
            if key_of(node.right) == key and any(map(_COUNTED_NAME.search, names)):
                return True
    return False


def _indexes_rows(context: Context, loop: ast.For) -> bool:
    """Return whether a loop over numbers indexes rows of tensors with them."""
    return any(
        isinstance(node, ast.Subscript)
        and key_of(node.slice) == key_of(loop.target) != ""
        and context.kinds.kind(node.value) is Kind.TENSOR
        for node in block_nodes(loop.body)
    )
