"""Rule on weights that are loaded without map_location."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.edits import replace_node, show_changed
from onsight_lint.kinds import Kind
from onsight_lint.loops import called_functions
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import (
    FUNCTIONS,
    argument_values,
    call_owner,
    is_main_guard,
    key_of,
    keyword_value,
    last_name,
    start_position,
)
from onsight_lint.values import Origin

_ACCELERATOR = re.compile(  # whole words: "input" contains npu
    r"cuda|accelerator|(?<![a-z])(?:mps|xpu|npu|gpus?)(?![a-z])", re.IGNORECASE
)
_SEVERAL_PROCESSES = re.compile(r"local_rank|init_process_group|DistributedDataParallel|\bDDP\b")
_DEVICE_CHOICE = re.compile(  # a script with these names may also run without a GPU, or on several
    r"is_available|is_initialized|device_count|(args|opt|cfg|config|flags|hparams)\.(cuda|gpu|device)"
    r"|(use|no)_(cuda|gpu)|local_rank|init_process_group|DistributedDataParallel|DDP|Fabric"
    r"|[Aa]ccelerator|Lightning|Trainer",
    re.IGNORECASE,
)
_PUBLISHED_FILE = re.compile(r"-[0-9a-f]{8}\.pth$")  # as torchvision names them; saved on the CPU
_PUBLISHED_WEIGHTS = re.compile(  # names of weights that others have published, saved on the CPU
    r"pre_?train|back_?bone|base_?net|imagenet|model_?zoo|vgg|resnet\d|hrnet|\burls?\b",
    re.IGNORECASE,
)
_WITHOUT_WEIGHTS = re.compile(r"optim|sched|scaler|sampler|(^|_)opt$")  # have other states
_MAX_SAVES = 20  # calls of torch.save that are compared with each torch.load
_LOADING_METHODS = ("load_state_dict", "load_checkpoint", "load_weights")


def _check(context: Context) -> Iterator[Mistake]:
    """torch.load of weights without map_location."""
    if not _uses_accelerator(context) or _needs_one_gpu(context):
        return
    for call in context.torch_loads:
        if len(call.args) > 1 or any(item.arg in ("map_location", None) for item in call.keywords):
            continue
        if context.loaded_network(call) is not None:
            continue
        excuses = (_has_alternative, _is_for_first_process, _is_published, _is_own_file)
        if not any(excuse(context, call) for excuse in excuses) and _reaches_weights(context, call):
            yield _mistake(context, call)


RULE = Rule(
    id="map-location",
    title="Weights are loaded without map_location",
    why=(
        "torch.load puts the tensors on the device that they were saved from: it fails on a "
        "machine without that device, and several processes all load onto the same GPU."
    ),
    check=_check,
    pattern="|".join(_LOADING_METHODS),
)


def _mistake(context: Context, call: ast.Call) -> Mistake:
    code, device = context.script.code, context.device_name(call) or '"cpu"'
    arguments = [*map(code, (*call.args, *call.keywords)), f"map_location={device}"]
    change = replace_node(context.script, call, f"{code(call.func)}({', '.join(arguments)})")
    fixed = show_changed(context.script, call, [change])
    return Mistake(call, "weights are loaded without map_location", fixed, changes=[change])


def _has_alternative(context: Context, call: ast.Call) -> bool:
    """Return whether the same function loads the same file with map_location in another branch."""
    return any(
        keyword_value(other, "map_location") is not None
        and context.script.function(other) is context.script.function(call)
        and ast.dump(other.args[0]) == ast.dump(call.args[0])
        for other in context.torch_loads
    )


def _uses_accelerator(context: Context) -> bool:
    """Return whether a script names a device other than the CPU, and moves its weights itself."""
    for node in context.script.nodes(ast.Import, ast.ImportFrom):
        modules = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
        if any("lightning" in module for module in modules):  # which chooses the device
            return False
    for node in context.script.nodes(ast.Name, ast.Attribute, ast.arg, ast.Constant):
        text = last_name(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_docstring = isinstance(context.script.parent(node), ast.Expr)
            text = "" if is_docstring else node.value[:200]
        if _ACCELERATOR.search(text):
            return True
    return False


def _needs_one_gpu(context: Context) -> bool:
    """Return whether a script only runs on a GPU, in one process."""
    moves = context.values.calls("cuda")
    needs = bool(moves)
    if any(_is_unconditional(context, call) for call in moves) or context.values.calls("Event"):
        names = context.script.nodes(ast.Name, ast.Attribute)
        return not any(_SEVERAL_PROCESSES.search(last_name(name)) for name in names)
    for node in context.script.nodes(ast.Name, ast.Attribute, ast.arg, ast.Constant):
        if not isinstance(node, ast.Constant):
            if _DEVICE_CHOICE.search(key_of(node) or last_name(node)):
                return False
        elif isinstance(node.value, str):
            is_default = isinstance(context.script.parent(node), ast.arguments)
            if re.fullmatch(r"cpu|-{0,2}(device|gpus?)", node.value) and not is_default:
                return False
            needs = needs or bool(re.fullmatch(r"cuda(:\d+)?", node.value))
    return needs


def _is_unconditional(context: Context, call: ast.Call) -> bool:
    """Return whether `.cuda()` is called in the script itself without a choice around it."""
    if context.script.source(call) is not context.script.sources[0]:
        return False
    return not any(
        isinstance(parent, (ast.If, ast.IfExp, ast.BoolOp)) and not is_main_guard(parent)
        for parent in context.script.ancestors(call)
    )


def _is_for_first_process(context: Context, call: ast.Call) -> bool:
    """Return whether only one of several processes loads a file."""
    tests = [p.test for p in context.script.ancestors(call) if isinstance(p, ast.If)]
    return any(re.search(r"rank_?0|rank == 0|main_process", context.script.code(t)) for t in tests)


def _is_published(context: Context, call: ast.Call) -> bool:
    """Return whether a file has the name of weights that others publish, or is loaded as such."""
    path = call.args[0]
    words = [part.value for part in ast.walk(path) if isinstance(part, ast.Constant)]
    if any(isinstance(word, str) and _PUBLISHED_FILE.search(word) for word in words):
        return True
    related = [path, *(origin.node for origin in context.values.origins(path))]
    for parent in context.script.ancestors(call):
        if isinstance(parent, (ast.If, ast.IfExp)):
            related.append(parent.test)
        if isinstance(parent, ast.Assign):
            related.extend(parent.targets)
    return any(_PUBLISHED_WEIGHTS.search(context.script.code(node)) for node in related)


def _is_own_file(context: Context, call: ast.Call) -> bool:
    """Return whether the same run has saved the file before, and so on the same device."""
    here, path = context.script.function(call), call.args[0]
    bindings = context.script.scope(path).reaching(path) if isinstance(path, ast.Name) else []
    returned = [item.value for item in bindings if isinstance(item.value, ast.Call)]
    for save in context.values.calls("save")[:_MAX_SAVES]:
        if len(save.args) < 2 or context.script.path_of(save.func) != "torch.save":
            continue
        if _path_dumps(context, save.args[1]) & _path_dumps(context, path):
            home = context.script.function(save)
            places = [call]
            if here is not home:
                places = context.values.call_sites(here) if isinstance(here, FUNCTIONS) else []
            if places and all(_follows(context, place, save) for place in places):
                return True
            if any(home in called_functions(context, node) for node in returned):
                return True  # `path = train()`, which saves the file
    return False


def _path_dumps(context: Context, path: ast.expr) -> set[str]:
    """A path in a form that can be compared, with variables traced to their origins."""
    origins = [origin.node for origin in context.values.origins(path) if not origin.steps]
    return {ast.dump(node) for node in (path, *origins) if not isinstance(node, ast.arg)}


def _follows(context: Context, place: ast.Call, save: ast.Call) -> bool:
    """Return whether a call in the function of a save is only reached after it."""
    is_same_function = context.script.function(place) is context.script.function(save)
    if not is_same_function or start_position(place) < start_position(save):
        return False
    around = set(context.script.ancestors(save))
    return all(
        parent in around
        for parent in context.script.ancestors(place)
        if isinstance(parent, (ast.If, ast.For, ast.While))
    )


def _reaches_weights(context: Context, call: ast.Call) -> bool:
    """Return whether the loaded value is passed to the load_state_dict of a network."""
    for name in _LOADING_METHODS:
        for use in context.values.calls(name):
            owner = call_owner(use)
            if owner is not None and (
                context.kinds.kind(owner) is Kind.OPTIMIZER
                or _WITHOUT_WEIGHTS.search(last_name(owner))
            ):
                continue
            if any(_comes_from(context, value, call) for value in argument_values(use)):
                return True
    return False


def _comes_from(context: Context, value: ast.AST, call: ast.Call, depth: int = 6) -> bool:
    """Return whether a value is the result of a call, or is computed from one."""
    if value is call:
        return True
    return depth > 0 and any(
        origin.node is call
        or any(_comes_from(context, part, call, depth - 1) for part in _ingredients(origin))
        for origin in context.values.origins(value)
    )


def _ingredients(origin: Origin) -> list[ast.expr]:
    """The parts of an expression; for a dict comprehension, its iterable."""
    match origin.node:
        case ast.DictComp(generators=[first, *_]):
            return [first.iter]
        case ast.Call(func=function, args=arguments):
            owner = [function.value] if isinstance(function, ast.Attribute) else []
            return [*owner, *arguments]
        case ast.Subscript(value=value) | ast.Attribute(value=value):
            return [value]
    return []
