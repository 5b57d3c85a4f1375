"""Rule on sums, lists and meters of batches that are carried over from epoch to epoch."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from onsight_lint.batch_means import batch_sums, divisions_after
from onsight_lint.edits import indented, show_with_line_above
from onsight_lint.loops import BatchLoop, loop_nodes
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import (
    FUNCTIONS,
    LOOPS,
    Function,
    Loop,
    end_position,
    key_of,
    last_name,
    names_in,
    own_nodes,
    start_position,
    word_set,
)

_HARMLESS = word_set(  # attributes that leave what is gathered as it is
    "append extend update item detach cpu copy avg global_avg val sum count compute"
)
_EMPTIES = word_set("clear pop reset")
_MEANT_FOR_ALL = re.compile(r"(^|_)(all|global|cum\w*|overall|hist\w*)(_|$)")
_EPOCH = re.compile(r"(?<!per_)epoch", re.IGNORECASE)
_SINCE_THE_START = re.compile("epoch|global")  # in what a sum is divided by
_SUMMARIES = word_set("stack cat concat hstack vstack concatenate mean average sum tensor array")
_SHOWS = re.compile(r"plot|draw|show|save")  # functions for which a list may hold all epochs
_STEPS = {"on_validation_epoch_end": "validation_step", "on_train_epoch_end": "training_step"}


def _check(context: Context) -> Iterator[Mistake]:
    """Figures of an epoch from a sum, list or meter that is older than the epoch."""
    seen: set[str] = set()
    for loop in context.loader_loops:
        epochs = _epoch_loop(context, loop)
        if epochs is None:
            continue
        for name, reads in _gathered(context, loop).items():
            read = next((node for node in reads if _is_of_epoch(context, node, loop, epochs)), None)
            if read is None or name.id in seen or _MEANT_FOR_ALL.search(name.id):
                continue
            begin, end = start_position(epochs), end_position(epochs)
            uses = context.script.source(name).by_key[name.id]
            uses = [use for use in uses if begin < start_position(use) < end]
            creation = _creation(context, name, epochs)
            if creation and not any(_may_empty(context, use) for use in uses):
                seen.add(name.id)
                statement = context.script.statement(loop.node)
                line = f"{name.id} = {context.script.code(creation)}"
                fixed = show_with_line_above(context.script, statement, line)
                yield Mistake(read, _problem(name.id), fixed)
    yield from _kept_outputs(context)


RULE = Rule(
    id="never-reset",
    title="A sum or list that is never reset",
    why=(
        "It still holds the batches of all earlier epochs, so the figure of each epoch is a mean "
        "over the whole training so far: it lags behind and hides when the network gets worse."
    ),
    check=_check,
    pattern=rf"{TRAINING_CODE}|_epoch_end\(",
)


def _problem(name: str) -> str:
    return f"{name} is never reset: it holds the batches of all epochs so far"


def _epoch_loop(context: Context, loop: BatchLoop) -> Loop | None:
    """The innermost loop over epochs around a loop over batches, in the same function."""
    for around in context.script.loops_around(loop.node):
        head = [around.test] if isinstance(around, ast.While) else [around.target, around.iter]
        if any(_EPOCH.search(context.script.code(part)) for part in head):
            return around
    return None


def _gathered(context: Context, loop: BatchLoop) -> dict[ast.Name, list[ast.AST]]:
    """The names in which a loop gathers batches, with the places where their means are taken."""
    divisions, by_key = divisions_after(context, loop), context.script.source(loop.node).by_key
    sums = {item.key for item in batch_sums(context, loop)}
    reads: dict[str, tuple[ast.Name, list[ast.AST]]] = {}
    for node in loop_nodes(loop):
        if not isinstance(node, ast.Name) or node.id in reads:
            continue
        if node.id in sums:
            reads[node.id] = node, [division.node for division in divisions[node.id]]
        elif isinstance(use := context.script.parent(node), ast.Attribute) and use.attr == "update":
            means = [f"{node.id}.{attribute}" for attribute in _mean_attributes(context, node)]
            reads[node.id] = node, [read for key in means for read in by_key[key]]
    return dict(reads.values())


def _mean_attributes(context: Context, meter: ast.Name) -> tuple[str, ...]:
    """The attributes that give the mean of a meter; none if it may forget values by itself."""
    origins = context.values.origins(meter)
    created = origins[0].node if len(origins) == 1 else None
    if not isinstance(created, ast.Call):
        return ()
    if context.script.path_of(created.func).startswith("torchmetrics."):
        return ("compute",)
    owner = context.script.definition(created.func)
    update = context.values.method(owner, "update") if isinstance(owner, ast.ClassDef) else None
    nodes = own_nodes(update) if update is not None else []
    adds = any(isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) for node in nodes)
    return ("avg", "global_avg") if adds else ()


def _is_of_epoch(context: Context, read: ast.AST, loop: BatchLoop, epochs: Loop) -> bool:
    """Return whether a mean is taken once in every epoch, after the loop over batches."""
    around_loop = {loop.node, *context.script.ancestors(loop.node)}
    for parent in context.script.ancestors(read):
        if parent is epochs:
            break
        may_skip = isinstance(parent, (*LOOPS, *FUNCTIONS, ast.If, ast.Lambda, ast.Module))
        if parent is loop.node or (may_skip and parent not in around_loop):
            return False
    whole = read
    while isinstance(parent := context.script.parent(whole), ast.BinOp):
        whole = parent
    counter = set() if isinstance(epochs, ast.While) else names_in(epochs.target)
    names = names_in(whole) if isinstance(whole, ast.BinOp) else set()  # `/ (epoch + 1)`
    is_so_far = bool(names & counter) or any(map(_SINCE_THE_START.search, names))
    return not is_so_far and start_position(read) > start_position(loop.node)


def _may_empty(context: Context, use: ast.AST) -> bool:
    """Return whether a use of a sum, list or meter may reset it, or is of a part of it."""
    match context.script.parent(use):
        case ast.Attribute(attr=attribute):
            return attribute not in _HARMLESS
        case ast.Subscript(slice=ast.Slice()):
            return True
        case ast.Call() as call:
            callee = context.values.callee(call)
            nodes = own_nodes(callee) if callee is not None else []
            return any(last_name(node) in _EMPTIES for node in nodes)
    return False


def _creation(context: Context, name: ast.Name, epochs: Loop) -> ast.expr | None:
    """The empty list, zero or meter that a name is given once, before the loop over epochs."""
    bindings = context.script.scope(name).lookup(name)
    changes = [item.node for item in bindings if item.kind == "augmented"]
    if len(bindings) != len(changes) + 1 or not all(map(_is_sum, changes)):
        return None
    (binding,) = (item for item in bindings if item.kind != "augmented")
    home, value, steps = context.script.function(binding.node), binding.value, binding.steps
    match value, steps:  # `losses, hits = [], 0`
        case ast.Tuple(elts=parts), (int(index), *rest) if -len(parts) <= index < len(parts):
            value, steps = parts[index], tuple(rest)
    is_before = binding.position < start_position(epochs)
    if steps or not is_before or home is not context.script.function(epochs):
        return None
    match value:
        case (
            ast.List(elts=[]) | ast.Constant(value=0) | ast.Call(func=ast.Name(id="list"), args=[])
        ):
            return value
        case ast.Call() if _mean_attributes(context, name):
            return value
    return None


def _is_sum(node: ast.AST) -> bool:
    """Return whether a change of a sum adds to it, or makes it a mean."""
    return isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Div))


def _kept_outputs(context: Context) -> Iterator[Mistake]:
    """Lists that a step of Lightning appends to, and that are read after every epoch."""
    for hook in context.script.nodes(*FUNCTIONS):
        owner, step = context.script.parent(hook), _STEPS.get(hook.name)
        if not step or not context.kinds.is_module_class(owner):
            continue
        method = context.values.method(owner, step)
        for key, uses in _attributes(context, owner).items():
            reads = [use for use in uses if _is_summarized(context, use, hook)]
            appends = [use for use in uses if last_name(context.script.parent(use)) == "append"]
            if (
                reads
                and any(context.script.function(use) is method for use in appends)
                and not any(_may_empty(context, use) for use in uses)
                and not _MEANT_FOR_ALL.search(key.removeprefix("self."))
                and _is_created_once(context, owner, key)
            ):
                line = f"{key}.clear()  # at the end of {hook.name}"
                fixed = indented(context.script, reads[0], line)
                yield Mistake(reads[0], _problem(key), fixed)


def _attributes(context: Context, owner: ast.ClassDef) -> dict[str, list[ast.Attribute]]:
    """Where a class and its bases read the attributes of self, by their keys."""
    uses: dict[str, list[ast.Attribute]] = defaultdict(list)
    for node in (node for part in context.values.lineage(owner) for node in ast.walk(part)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            uses[key_of(node)].append(node)
    return uses


def _is_summarized(context: Context, use: ast.AST, hook: Function) -> bool:
    """Return whether a method makes one figure of a whole list."""
    match context.script.parent(use) if context.script.function(use) is hook else None:
        case ast.Call(func=function) as call:
            is_own = context.values.callee(call) is not None
            return last_name(function) in _SUMMARIES or (
                is_own and not _SHOWS.search(last_name(function))
            )
        case ast.For() | ast.comprehension():
            return True
    return False


def _is_created_once(context: Context, owner: ast.ClassDef, key: str) -> bool:
    """Return whether a list is only assigned to an attribute by `__init__`."""
    name = key.removeprefix("self.")
    members = context.script.scope(owner).attributes.get((owner, name), [])
    homes = [getattr(context.script.function(member.node), "name", "") for member in members]
    return homes == ["__init__"] and isinstance(members[0].value, ast.List)
