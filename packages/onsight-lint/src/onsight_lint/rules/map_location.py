"""Rule on weights that are loaded without map_location."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.calls import keyword, last_name
from onsight_lint.checkpoints import is_used_as_network, load_calls
from onsight_lint.context import Context
from onsight_lint.fix import fixed, replaced
from onsight_lint.flow import key_of
from onsight_lint.reachable import is_main
from onsight_lint.rule import Mistake, Rule
from onsight_lint.source import FUNCTIONS, start_place
from onsight_lint.values import Origin
from onsight_lint.vocabulary import Kind

_ACCELERATORS = re.compile(  # whole words: "input" has an npu in it
    r"cuda|accelerator|(?<![a-z])(?:mps|xpu|npu|gpus?)(?![a-z])", re.IGNORECASE
)
_SEVERAL = re.compile(r"local_rank|init_process_group|DistributedDataParallel|\bDDP\b")
_CHOICES = re.compile(  # a script with these words may also run without a GPU, or on several
    r"is_available|is_initialized|device_count|(args|opt|cfg|config|flags|hparams)\.(cuda|gpu|device)"
    r"|(use|no)_(cuda|gpu)|local_rank|init_process_group|DistributedDataParallel|DDP|Fabric"
    r"|[Aa]ccelerator|Lightning|Trainer",
    re.IGNORECASE,
)
_PUBLISHED = re.compile(r"-[0-9a-f]{8}\.pth$")  # as torchvision names its files, saved on the CPU
_OTHERS = re.compile(  # words for weights that others have trained and published, from the CPU
    r"pre_?train|back_?bone|base_?net|imagenet|model_?zoo|vgg|resnet\d|hrnet|\burls?\b",
    re.IGNORECASE,
)
_MOVES_WEIGHTS = re.compile(r"lightning")  # a library that loads checkpoints onto its own device
_HELPERS = re.compile(r"optim|sched|scaler|sampler|(^|_)opt$")  # have states, no weights
_WHY = (
    "The tensors are loaded onto the device that they were saved from: loading fails on a machine "
    "without it, and several processes all load onto the same GPU."
)


def _check(context: Context) -> Iterator[Mistake]:
    """torch.load of weights without map_location."""
    if not _uses_accelerator(context) or _needs_one_gpu(context):
        return
    for call in load_calls(context):
        if len(call.args) > 1 or any(one.arg in ("map_location", None) for one in call.keywords):
            continue
        if _is_considered(context, call) or is_used_as_network(context, call):
            continue
        if _is_published(context, call) or _is_own_file(context, call):
            continue
        if _reaches_weights(context, call):
            where = _device(context, call)
            inner = [*map(context.script.code, call.args)]
            inner += [context.script.code(one) for one in call.keywords]
            new = (
                f"{context.script.code(call.func)}({', '.join([*inner, f'map_location={where}'])})"
            )
            mend = [replaced(call, new)]
            problem = "weights are loaded without map_location"
            yield Mistake(call, problem, fixed(context.script, call, mend), mend=mend)


RULE = Rule(
    "map-location",
    "Weights are loaded without map_location",
    _WHY,
    _check,
    "load_state_dict|load_checkpoint|load_weights",
)


def _is_considered(context: Context, call: ast.Call) -> bool:
    """Whether the same function loads the same file with map_location in another branch."""
    return any(
        keyword(other, "map_location") is not None
        and context.script.function(other) is context.script.function(call)
        and ast.dump(other.args[0]) == ast.dump(call.args[0])
        for other in load_calls(context)
    )


def _uses_accelerator(context: Context) -> bool:
    """Whether a script names anything but the CPU, and moves its weights itself."""
    for one in context.script.nodes(ast.Import, ast.ImportFrom):
        modules = [getattr(one, "module", None) or "", *(alias.name for alias in one.names)]
        if any(_MOVES_WEIGHTS.search(module) for module in modules):
            return False
    for node in context.script.nodes(ast.Name, ast.Attribute, ast.arg, ast.Constant):
        words = ""
        if isinstance(node, (ast.Name, ast.Attribute, ast.arg)):
            words = last_name(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parent = context.script.parent(node)
            words = "" if isinstance(parent, ast.Expr) else node.value[:200]
        if _ACCELERATORS.search(words):
            return True
    return False


def _needs_one_gpu(context: Context) -> bool:
    """Whether a script only runs on a GPU, in one process."""
    needs = bool(context.values.calls("cuda"))
    always = any(_is_unconditional(context, call) for call in context.values.calls("cuda"))
    if always or context.values.calls("Event"):
        names = context.script.nodes(ast.Name, ast.Attribute)
        return not any(_SEVERAL.search(last_name(one)) for one in names)
    for node in context.script.nodes(ast.Name, ast.Attribute, ast.arg, ast.Constant):
        if not isinstance(node, ast.Constant):
            if _CHOICES.search(key_of(node) or last_name(node)):
                return False
        elif isinstance(node.value, str):
            default = isinstance(context.script.parent(node), ast.arguments)
            if re.fullmatch(r"cpu|-{0,2}(device|gpus?)", node.value) and not default:
                return False
            needs = needs or bool(re.fullmatch(r"cuda(:\d+)?", node.value))
    return needs


def _is_unconditional(context: Context, call: ast.Call) -> bool:
    """Whether `.cuda()` is called in the script itself without a choice around it."""
    source = context.script.source(call)
    around = source.ancestors(call)
    return source in context.script.sources[:1] and not any(
        isinstance(one, (ast.If, ast.IfExp, ast.BoolOp)) and not is_main(one) for one in around
    )


def _is_published(context: Context, call: ast.Call) -> bool:
    """Whether a file has the name of weights that others publish, or is loaded as such."""
    words = [one.value for one in ast.walk(call.args[0]) if isinstance(one, ast.Constant)]
    if any(isinstance(word, str) and _PUBLISHED.search(word) for word in words):
        return True
    said = [call.args[0], *(origin.node for origin in context.values.origins(call.args[0]))]
    for parent in context.script.source(call).ancestors(call):
        if isinstance(parent, (ast.If, ast.IfExp)):
            said.append(parent.test)
        if isinstance(parent, ast.Assign):
            said.extend(parent.targets)
    return any(_OTHERS.search(context.script.code(one)) for one in said)


def _is_own_file(context: Context, call: ast.Call) -> bool:
    """Whether the same run has saved the file before, and so on the same device."""
    for save in context.values.calls("save"):
        if len(save.args) < 2 or context.script.path_of(save.func) != "torch.save":
            continue
        if _codes(context, save.args[1]) & _codes(context, call.args[0]):
            home = context.script.function(save)
            places = [call]
            if context.script.function(call) is not home:
                around = context.script.function(call)
                places = context.values.call_sites(around) if isinstance(around, FUNCTIONS) else []
            if places and all(_follows(context, place, save, home) for place in places):
                return True
    return False


def _codes(context: Context, path: ast.expr) -> set[str]:
    """The code of a path, and of what it was made of where its name is a variable."""
    made = [origin.node for origin in context.values.origins(path) if not origin.steps]
    return {ast.dump(one) for one in (path, *made) if not isinstance(one, ast.arg)}


def _follows(context: Context, place: ast.Call, save: ast.Call, home: ast.AST) -> bool:
    """Whether a call in the function of a save is only reached after it."""
    if context.script.function(place) is not home or start_place(place) < start_place(save):
        return False
    around = set(context.script.source(save).ancestors(save))
    branches = (ast.If, ast.For, ast.While)
    own = [
        one for one in context.script.source(place).ancestors(place) if isinstance(one, branches)
    ]
    return all(one in around for one in own)


def _reaches_weights(context: Context, call: ast.Call) -> bool:
    """Whether what is loaded is passed to load_state_dict."""
    for name in ("load_state_dict", "load_checkpoint", "load_weights"):
        for use in context.values.calls(name):
            owner = use.func.value if isinstance(use.func, ast.Attribute) else None
            if owner is not None and (
                context.kinds.kind(owner) is Kind.OPTIMIZER or _HELPERS.search(last_name(owner))
            ):
                continue
            if any(_comes_from(context, value, call) for value in use.args):
                return True
    return False


def _comes_from(context: Context, value: ast.AST, call: ast.Call, depth: int = 6) -> bool:
    """Whether a value, or what it was made of, is the result of a call."""
    if value is call:
        return True
    if not depth:
        return False
    for origin in context.values.origins(value):
        if origin.node is call:
            return True
        for part in _parts(origin):
            if _comes_from(context, part, call, depth - 1):
                return True
    return False


def _parts(origin: Origin) -> list[ast.expr]:
    """The parts of an expression; of a dict comprehension, what it iterates over."""
    match origin.node:
        case ast.DictComp(generators=[first, *_]):
            return [first.iter]
        case ast.Call(func=function, args=arguments):
            owner = [function.value] if isinstance(function, ast.Attribute) else []
            return [*owner, *arguments]
        case ast.Subscript(value=value) | ast.Attribute(value=value):
            return [value]
    return []


def _device(context: Context, call: ast.Call) -> str:
    """The user's own `device` if there is one, else the CPU."""
    scopes = context.script.scope(call)
    for home in (context.script.function(call), context.script.source(call).tree):
        bindings = scopes.tables[home].get("device", [])
        known = [one for one in bindings if one.how in ("value", "parameter")]
        if any(isinstance(home, FUNCTIONS) or one.place < (call.lineno, 0) for one in known):
            return "device"
    return '"cpu"'
