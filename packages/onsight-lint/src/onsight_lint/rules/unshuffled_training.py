"""Rule on training with the rows in the same order in every epoch."""

import ast
from collections.abc import Iterator

from onsight_lint.edits import Change, replace_node, show_changed
from onsight_lint.facts import DATASET_PARTS
from onsight_lint.lightning import step_loaders
from onsight_lint.loops import BatchLoop, called_functions
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import Function, last_name, own_nodes, word_set

_ORDER_MATTERS = word_set("LSTM GRU RNN LSTMCell GRUCell IterableDataset DistributedSampler")


def _check(context: Context) -> Iterator[Mistake]:
    """Training loops over loaders of images that are never shuffled."""
    names = {node.attr for node in context.script.nodes(ast.Attribute)}
    names |= {node.id for node in context.script.nodes(ast.Name)}
    if names & _ORDER_MATTERS:
        return
    seen: set[ast.AST] = set()
    loops = [loop for loop in context.loader_loops if _updates(context, loop)]
    trained = [(loop.loader, context.loaders.creations(loop.loader)) for loop in loops]
    if not _shuffles_by_itself(context):
        steps = step_loaders(context, "train")
        trained += [(steps[0], steps)] if steps else []
    for loader, creations in trained:
        if creations and all(_keeps_order(context, call) for call in creations):
            for call in creations:
                if call not in seen:
                    seen.add(call)
                    yield _mistake(context, loader, call)


RULE = Rule(
    id="unshuffled-training",
    title="Training without shuffling",
    why=(
        "Every epoch has the same batches in the same order. Folders and many files are sorted by "
        "class, so a whole batch, and with it the statistics of batch norm, is of one class."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _updates(context: Context, loop: BatchLoop) -> bool:
    """Return whether a loop certainly updates weights, not images as an attack does."""
    if not loop.trains or not loop.network_calls:
        return False
    places = [loop.node, *called_functions(context, loop.node)]
    nodes = (node for place in places for node in own_nodes(place))
    called = {last_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    return called >= {"backward", "step"}


def _shuffles_by_itself(context: Context) -> bool:
    """Return whether Lightning may replace the loader's sampler, as it does for several GPUs."""
    keywords = (keyword for call in context.values.calls("Trainer") for keyword in call.keywords)
    return any("ddp" in context.script.code(keyword.value) for keyword in keywords)


def _keeps_order(context: Context, call: ast.Call) -> bool:
    """Return whether a loader certainly yields the rows of a dataset of images in their order."""
    if not context.script.path_of(call.func).startswith("torch.utils.data."):
        return False
    if context.loaders.value(call, "shuffle", False) is not False:
        return False
    for name in ("sampler", "batch_sampler"):
        if context.loaders.value(call, name, None) is not None:
            return False
    dataset = context.loaders.setting(call, "dataset")
    return dataset is not None and _has_fixed_order(context, dataset)


def _has_fixed_order(context: Context, dataset: ast.AST, depth: int = 4) -> bool:
    """Return whether a dataset is torchvision's, a class of the script, or a subset of these."""
    origins = context.values.origins(dataset)
    return bool(origins) and all(
        isinstance(origin.node, ast.Call) and _creates_fixed_order(context, origin.node, depth)
        for origin in origins
    )


def _creates_fixed_order(context: Context, created: ast.Call, depth: int) -> bool:
    path = context.script.path_of(created.func)
    if path.startswith("torchvision.datasets."):
        return True
    if path in DATASET_PARTS and created.args and depth:
        return _has_fixed_order(context, created.args[0], depth - 1)
    owner = context.script.definition(created.func)
    if not isinstance(owner, ast.ClassDef):
        return False
    is_known = any(
        path.endswith("data.Dataset") or path.startswith("torchvision.")
        for path in context.values.base_paths(owner)
    )
    item = context.values.method(owner, "__getitem__")
    return is_known and item is not None and _returns_requested_row(item)


def _returns_requested_row(item: Function) -> bool:
    """Return whether a __getitem__ uses its index as it is, and does not sample another."""
    names = [argument.arg for argument in item.args.args[1:2]]
    nodes = own_nodes(item)
    used = [node for node in nodes if isinstance(node, ast.Name) and node.id in names]
    return bool(used) and all(isinstance(name.ctx, ast.Load) for name in used)


def _mistake(context: Context, loader: ast.expr, call: ast.Call) -> Mistake:
    flag = context.loaders.setting(call, "shuffle")
    if flag is not None:
        change = replace_node(context.script, flag, "True")
    else:
        end = context.script.source(call).end([*call.args, *call.keywords][-1])
        change = Change(end, end, ", shuffle=True")
    node = call if flag is None else flag
    name = "the loader" if isinstance(loader, ast.Call) else context.script.code(loader)
    problem = f"{name} yields its rows in the same order in every epoch"
    return Mistake(node, problem, show_changed(context.script, node, [change]))
