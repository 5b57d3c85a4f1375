"""Rule on training with the rows in the same order in every epoch."""

import ast
from collections.abc import Iterator

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import fixed, replaced
from onsight_lint.loops import BatchLoop, reached
from onsight_lint.rule import Mistake, Rule
from onsight_lint.source import Function, end_place, own_nodes
from onsight_lint.vocabulary import LOOPS, word_set

_WHY = (
    "Every epoch has the same batches in the same order. Folders and many files are sorted by "
    "class, so that whole batches are of one class and batch norm sees no other."
)
_ORDERED = word_set("LSTM GRU RNN LSTMCell GRUCell IterableDataset DistributedSampler")


def _check(context: Context) -> Iterator[Mistake]:
    """Training loops over loaders of images that are never shuffled."""
    names = {node.attr for node in context.script.nodes(ast.Attribute)}
    names |= {node.id for node in context.script.nodes(ast.Name)}
    if names & _ORDERED:
        return
    seen: set[ast.AST] = set()
    for loop in context.batch_loops:
        made = context.loaders.made(loop.loader) if _learns(context, loop) else []
        if made and all(_keeps_order(context, call) for call in made):
            for call in made:
                if call not in seen:
                    seen.add(call)
                    yield _mistake(context, loop, call)


RULE = Rule("unshuffled-training", "Training without shuffling", _WHY, _check, LOOPS)


def _learns(context: Context, loop: BatchLoop) -> bool:
    """Whether a loop certainly changes weights for its batches, not images as an attack does."""
    places = [loop.node, *reached(context, loop.node)] if loop.trains and loop.runs else []
    nodes = (node for place in places for node in own_nodes(place))
    called = {last_name(one.func) for one in nodes if isinstance(one, ast.Call)}
    return called >= {"backward", "step"}


def _keeps_order(context: Context, call: ast.Call) -> bool:
    """Whether a loader certainly yields the rows of a dataset of images in their order."""
    if not context.script.path_of(call.func).startswith("torch.utils.data."):
        return False
    if context.loaders.fixed(call, "shuffle", False) is not False:
        return False
    for name in ("sampler", "batch_sampler"):
        if context.loaders.fixed(call, name, None) is not None:
            return False
    dataset = context.loaders.setting(call, "dataset")
    return dataset is not None and _has_fixed_order(context, dataset)


def _has_fixed_order(context: Context, dataset: ast.AST, depth: int = 4) -> bool:
    """Whether a dataset is of torchvision, a class here, or a part of one of them."""
    origins = context.values.origins(dataset)
    return bool(origins) and all(
        isinstance(one.node, ast.Call) and _is_fixed(context, one.node, depth) for one in origins
    )


def _is_fixed(context: Context, made: ast.Call, depth: int) -> bool:
    path = context.script.path_of(made.func)
    if path.startswith("torchvision.datasets."):
        return True
    if path in ("torch.utils.data.random_split", "torch.utils.data.Subset") and made.args and depth:
        return _has_fixed_order(context, made.args[0], depth - 1)
    owner = context.script.definition(made.func)
    if not isinstance(owner, ast.ClassDef):
        return False
    paths = {
        context.script.path_of(one)
        for owner in context.values.lineage(owner)
        for one in owner.bases
    }
    item = context.values.method(owner, "__getitem__")
    known = any(one.endswith("data.Dataset") or one.startswith("torchvision.") for one in paths)
    return known and item is not None and _takes_the_row(item)


def _takes_the_row(item: Function) -> bool:
    """Whether the row that is returned is the one that was asked for, and not drawn."""
    names = [one.arg for one in item.args.args[1:2]]
    used = [one for one in own_nodes(item) if isinstance(one, ast.Name) and one.id in names]
    return bool(used) and all(isinstance(one.ctx, ast.Load) for one in used)


def _mistake(context: Context, loop: BatchLoop, call: ast.Call) -> Mistake:
    flag = context.loaders.setting(call, "shuffle")
    if flag is not None:
        edit = replaced(flag, "True")
    else:
        last = end_place([*call.args, *call.keywords][-1])
        edit = last, last, ", shuffle=True"
    node = call if flag is None else flag
    text = fixed(context.script, node, [edit])
    problem = (
        f"the rows of {context.script.code(loop.loader)} come in the same order in every epoch"
    )
    return Mistake(node, problem, text)
