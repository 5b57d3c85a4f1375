"""Rule on counting rows by a batch size written into the code."""

import ast
import re
from collections.abc import Iterator, Sequence

from onsight.explain.reading.calls import last_name
from onsight.explain.reading.facts import Facts
from onsight.explain.reading.finding import Finding
from onsight.explain.reading.fix import fixed, found, replaced
from onsight.explain.reading.flow import key_of
from onsight.explain.reading.loops import BatchLoop, is_place, loop_nodes, loop_rows
from onsight.explain.reading.source import own_nodes
from onsight.explain.reading.vocabulary import Kind

_WHY = (
    "The last batch may have fewer rows than the batch size, and the size may be changed in one "
    "place only: the figure is then wrong, or the script stops. Ask the batch itself."
)
_RULE = "hard-coded-batch-size"
_COUNTED = re.compile(r"correct|acc|loss|hit|error|right|top\d|match", re.IGNORECASE)
_SIZE_NAME = re.compile(r"(^|_)batch_?size$|^bs$|^bsz$", re.IGNORECASE)


def batch_sizes(facts: Facts, loops: Sequence[BatchLoop]) -> Iterator[Finding]:
    """Totals, divisors, views and ranges that take the batch size for granted."""
    told: set[ast.AST] = set()
    for loop in loops:
        short = facts.loaders.last_may_be_short(loop.loader)
        for finding, size in (*_in_loop(facts, loop), *_divisors(facts, loop)):
            in_two_places = isinstance(size, ast.Constant)  # wrong once the other one is changed
            if size not in told and (short or in_two_places):
                told.add(size)
                yield finding
    yield from _in_forward(facts)


def _in_loop(facts: Facts, loop: BatchLoop) -> Iterator[tuple[Finding, ast.AST]]:
    rows = loop_rows(facts, loop)
    for node in loop_nodes(loop):
        match node:
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                if _is_size(facts, loop, value) and _is_divisor(facts, loop, target):
                    yield _finding(facts, value, rows, "rows are counted by"), value
            case ast.Call(func=ast.Attribute(attr="view" | "reshape"), args=[size, rest, *_]):
                if _is_minus_one(rest) and _is_literal_size(facts, loop, size):
                    yield _finding(facts, size, rows, "a batch is reshaped by"), size
            case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[size])):
                if _is_literal_size(facts, loop, size) and _takes_rows(facts, node):
                    yield _finding(facts, size, rows, "a batch is walked by"), size


def _divisors(facts: Facts, loop: BatchLoop) -> Iterator[tuple[Finding, ast.AST]]:
    """`correct / (len(loader) * 64)`."""
    scope = facts.script.function(loop.node)
    gathered = {key_of(node.target) for node in loop_nodes(loop) if isinstance(node, ast.AugAssign)}
    for node in own_nodes(scope):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            continue
        names = {key_of(one) for one in ast.walk(node.left) if isinstance(one, ast.expr)}
        counted = {name for name in names & gathered if _COUNTED.search(name)}
        product = _followed(facts, node.right)
        size = _size_in_product(facts, loop, product) if counted else None
        if size is not None:
            new = f"len({facts.script.words(loop.loader)}.dataset)"
            text = fixed(facts.script, product, [replaced(product, new)])
            problem = f"{facts.script.words(product)} is not the number of rows"
            yield found(facts.script, product, _RULE, problem, _WHY, text), size


def _followed(facts: Facts, expression: ast.expr) -> ast.expr:
    """What a name was given in the same function, or the expression itself."""
    if isinstance(expression, ast.Name):
        bindings = facts.script.scope(expression).reaching(expression)
        if len(bindings) == 1 and bindings[0].value is not None and not bindings[0].steps:
            return bindings[0].value
    return expression


def _size_in_product(facts: Facts, loop: BatchLoop, divisor: ast.expr) -> ast.expr | None:
    """The batch size, where a divisor is the number of batches times it."""
    if not isinstance(divisor, ast.BinOp) or not isinstance(divisor.op, ast.Mult):
        return None
    for one, other in ((divisor.left, divisor.right), (divisor.right, divisor.left)):
        if _is_size(facts, loop, one) and _is_batches(facts, loop, other):
            return one
    return None


def _in_forward(facts: Facts) -> Iterator[Finding]:
    """`x.view(64, -1)` in the forward of a module."""
    sizes = {size for size in facts.loaders.batch_sizes() if size >= 4}
    for source in facts.script.sources:
        for node in source.nodes:
            if not isinstance(node, ast.FunctionDef) or node.name != "forward":
                continue
            owner = facts.script.parent(node)
            if not isinstance(owner, ast.ClassDef) or not facts.kinds.is_module_class(owner):
                continue
            names = [argument.arg for argument in node.args.args[1:]]
            for call in own_nodes(node):
                match call:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id=name), attr="view" | "reshape"),
                        args=[size, rest],
                    ) if names and _is_minus_one(rest):
                        value = facts.constants.fixed(size)
                        if isinstance(value, int) and value in sizes:
                            text = f"{name}.size(0)"
                            yield _finding(facts, size, text, "a batch is reshaped by")


def _finding(facts: Facts, size: ast.expr, rows: str, what: str) -> Finding:
    text = fixed(facts.script, size, [replaced(size, rows)])
    problem = f"{what} {facts.script.words(size)}, whatever the batch holds"
    return found(facts.script, size, _RULE, problem, _WHY, text)


def _is_size(facts: Facts, loop: BatchLoop, value: ast.expr) -> bool:
    """Whether a value is the batch size of a loop's loader, by its name or its number."""
    if _SIZE_NAME.search(last_name(value)) and facts.values.origins(value):
        return not _is_measured(facts, value)
    return _is_literal_size(facts, loop, value)


def _is_literal_size(facts: Facts, loop: BatchLoop, value: ast.expr) -> bool:
    """Whether a value is a number of the text equal to the batch size, or what named it there."""
    number = facts.constants.fixed(value)
    if not isinstance(number, int) or isinstance(number, bool) or number < 2:
        return bool(_SIZE_NAME.search(last_name(value))) and not _is_measured(facts, value)
    for call in facts.loaders.made(loop.loader):
        size = facts.loaders.setting(call, "batch_size")
        if size is not None and facts.constants.usual(size) == number:
            return True
    return False


def _is_measured(facts: Facts, value: ast.expr) -> bool:
    """Whether a batch size was asked of the batch: `batch_size = labels.size(0)`."""
    if isinstance(value, ast.Attribute) and not facts.values.members(value):
        return last_name(value.value) not in ("args", "opt", "cfg", "config", "hparams", "self")
    return any(
        not isinstance(origin.node, (ast.Constant, ast.Attribute))
        for origin in facts.values.origins(value)
    )


def _is_divisor(facts: Facts, loop: BatchLoop, target: ast.expr) -> bool:
    """Whether a total is what correct answers or losses are divided by."""
    key = key_of(target)
    for node in own_nodes(facts.script.function(loop.node)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            words = (last_name(one) for one in ast.walk(node.left))
            if key_of(node.right) == key and any(_COUNTED.search(word) for word in words):
                return True
    return False


def _is_batches(facts: Facts, loop: BatchLoop, expression: ast.expr) -> bool:
    if isinstance(expression, ast.Call) and last_name(expression.func) == "len":
        counted = expression.args[0] if expression.args else expression
        same = facts.script.words(counted) == facts.script.words(loop.loader)
        return same or facts.kinds.kind(counted) is Kind.LOADER
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
        one = isinstance(expression.right, ast.Constant) and expression.right.value == 1
        return one and is_place(loop, expression.left)
    if isinstance(expression, ast.Name):
        return any(
            origin.node is not expression
            and isinstance(origin.node, ast.Call)
            and _is_batches(facts, loop, origin.node)
            for origin in facts.values.origins(expression)
        )
    return False


def _is_minus_one(expression: ast.expr) -> bool:
    return (
        isinstance(expression, ast.UnaryOp)
        and isinstance(expression.op, ast.USub)
        and isinstance(expression.operand, ast.Constant)
        and expression.operand.value == 1
    )


def _takes_rows(facts: Facts, loop: ast.For) -> bool:
    """Whether a loop over numbers takes rows of tensors by them."""
    return any(
        isinstance(node, ast.Subscript)
        and key_of(node.slice) == key_of(loop.target) != ""
        and facts.kinds.kind(node.value) is Kind.TENSOR
        for statement in loop.body
        for node in (statement, *own_nodes(statement))
    )
