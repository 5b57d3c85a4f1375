"""Rule on code that needs a GPU, in a script that also runs without one."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.edits import show_replaced, show_wrapped
from onsight_lint.kinds import Kind
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.source import BLOCK_ENDS, SourceFile
from onsight_lint.syntax import (
    COMPREHENSIONS,
    DEFINITIONS,
    FUNCTIONS,
    argument_values,
    call_owner,
    children,
    last_name,
    own_nodes,
    start_position,
    word_set,
)

_Test = ast.If | ast.IfExp | ast.Assert

_CHOICE = re.compile(  # a test whether to use the GPU
    r"cuda\.is_available|(use|no)_?(cuda|gpu)|(args|opt|cfg|config)\.cuda\b", re.IGNORECASE
)
_MAY_ASK = re.compile(  # a test that may be about the GPU
    r"cuda|[cg]pu|devic|dev\b|avail|accel|\bamp|_amp|fp16|half|precision|distrib|ddp|parallel"
    r"|rank|world|nccl|backend|platform|skip",
    re.IGNORECASE,
)
_CUDA_FUNCTIONS = word_set(  # of torch.cuda, that raise an error without a GPU
    "synchronize current_device set_device get_device_name get_device_properties mem_get_info "
    "get_device_capability current_stream default_stream ipc_collect Stream"
)
_NAMES_GPU = re.compile(r"(.*\bdevice\()?[\"']cuda(:\d+)?[\"']\)?|torch\.cuda\.\w+Tensor")
_COUNTS_GPUS = re.compile(r"device_count|VISIBLE_DEVICES|local_rank")
_NO_WEIGHTS = re.compile(r"loss|crit|metric", re.IGNORECASE)  # moving these does nothing
_GPU = re.compile(r"cuda|gpu", re.IGNORECASE)
_EXIT = re.compile(r"exit|quit|abort|skip|error$", re.IGNORECASE)


def _check(context: Context) -> Iterator[Mistake]:
    """`.cuda()`, `torch.cuda.synchronize()` and the like that no test guards; "cuda:1"."""
    for source in context.script.sources:
        tests: list[_Test] = source.all(ast.If, ast.IfExp, ast.Assert)
        codes = {node: source.code(node.test) for node in tests}
        falls_back = any(_falls_back(node) for node in tests if _CHOICE.search(codes[node]))
        if not falls_back or any(_may_stop(node) for node in tests if _GPU.search(codes[node])):
            continue
        calls = [call for call in source.all(ast.Call) if _needs_gpu(context, call)]
        calls = [call for call in calls if _runs(context, call, set())]
        yield from (_mistake(context, call) for call in calls)
        for node in _numbered_gpus(source):
            if source.parents[node] not in calls:
                problem = f"{source.code(node)} does not exist on a machine with one GPU"
                fixed = show_replaced(context.script, node, '"cuda"')
                why = "The script only asks whether there is a GPU; with a single one, this fails."
                yield Mistake(node, problem, fixed, why)


RULE = Rule(
    id="gpu-assumed",
    title="A GPU is assumed in a script that also runs without one",
    why="Elsewhere the script provides for a machine without a GPU; there, this raises an error.",
    check=_check,
    pattern="cuda",
)


def _mistake(context: Context, call: ast.Call) -> Mistake:
    code, owner = context.script.code, call_owner(call)
    if last_name(call) in ("to", "cuda") and owner is not None:
        device = context.device_name(call) or '"cuda" if torch.cuda.is_available() else "cpu"'
        fixed = show_replaced(context.script, call, f"{code(owner)}.to({device})")
    else:
        statement = context.script.statement(call)
        fixed = show_wrapped(context.script, statement, "if torch.cuda.is_available():")
    name = code(call) if len(code(call)) < 60 else f"{last_name(call)}()"
    return Mistake(call, f"{name} needs a GPU", fixed)


def _falls_back(test: _Test) -> bool:
    """Return whether the branches of a test choose between the GPU and the CPU."""
    return any(
        (isinstance(node, ast.Call) and last_name(node) == "cuda")
        or (isinstance(node, ast.Constant) and re.match(r"cpu$|cuda(:\d+)?$", str(node.value)))
        for branch in children(test)
        for node in ast.walk(branch)
        if branch is not test.test
    )


def _may_stop(test: _Test) -> bool:
    """Return whether a script may stop at a test, without a GPU."""
    return isinstance(test, ast.Assert) or any(
        isinstance(node, ast.Raise)
        or (isinstance(node, ast.Call) and _EXIT.search(last_name(node)))
        for node in ast.walk(test)
    )


def _needs_gpu(context: Context, call: ast.Call) -> bool:
    """Return whether a call raises an error without a GPU."""
    path, name, owner = context.script.path_of(call.func), last_name(call), call_owner(call)
    if path.startswith("torch.cuda."):
        return name in _CUDA_FUNCTIONS or path.endswith("Tensor")
    codes = map(context.script.code, argument_values(call))
    names_gpu = any(map(_NAMES_GPU.fullmatch, codes))
    if path or owner is None:
        return names_gpu and context.kinds.kind(call) is Kind.TENSOR
    if name != "cuda" and not (names_gpu and name in ("to", "type")):
        return False
    kind = context.kinds.kind(owner)
    if context.values.callee(call) is not None or kind in (Kind.LOSS, Kind.LAYER, Kind.OTHER):
        return False
    return kind is not Kind.UNKNOWN or not _NO_WEIGHTS.search(context.script.code(owner))


def _numbered_gpus(source: SourceFile) -> list[ast.Constant]:
    """The places where a file chooses a GPU by its number, if it is always the same, not 0."""
    named = [node for node in source.all(ast.Constant) if re.match(r"cuda:\d+$", str(node.value))]
    is_one = len({node.value for node in named}) == 1 and named[0].value != "cuda:0"
    return [
        node
        for node in (named if is_one and not _COUNTS_GPUS.search(source.text) else [])
        if isinstance(parent := source.parents[node], (ast.IfExp, ast.Assign))
        or last_name(parent) == "device"
        or (last_name(parent) in ("to", "cuda") and not _NO_WEIGHTS.search(source.code(parent)))
    ]


def _runs(context: Context, node: ast.AST, seen: set[ast.AST]) -> bool:
    """Return whether the script reaches code without a test that may be about the GPU."""
    script = context.script
    function = script.function(node)
    if function in seen or any(_may_guard(context, item) for item in script.ancestors(node)):
        return False
    seen.add(function)
    tests = [test for test in own_nodes(function) if isinstance(test, ast.If)]
    earlier = [test for test in tests if start_position(test) < start_position(node)]
    leaving = [test.test for test in earlier if isinstance(test.body[-1], BLOCK_ENDS)]
    if any(map(_MAY_ASK.search, map(script.code, leaving))):
        return False
    if not isinstance(function, FUNCTIONS):
        return isinstance(function, ast.Module)
    return any(_runs(context, site, seen) for site in context.values.call_sites(function))


def _may_guard(context: Context, parent: ast.AST) -> bool:
    """Return whether what contains a node may depend on whether there is a GPU."""
    code = context.script.code
    if isinstance(parent, (ast.If, ast.IfExp, ast.While)):
        parts = parent.test.values if isinstance(parent.test, ast.BoolOp) else [parent.test]
        is_plain = all(isinstance(part, (ast.Compare, ast.Constant)) for part in parts)
        return not is_plain or bool(_MAY_ASK.search(code(parent.test)))
    if isinstance(parent, DEFINITIONS):
        return any(map(_MAY_ASK.search, (parent.name, *map(code, parent.decorator_list))))
    return isinstance(parent, (ast.Try, ast.Match, ast.BoolOp, *COMPREHENSIONS))
