"""Rule on images that cannot be read and are silently skipped."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import header
from onsight_lint.flow import key_of
from onsight_lint.rule import Mistake, Rule
from onsight_lint.source import FUNCTIONS, Source, own_nodes, start_place
from onsight_lint.vocabulary import word_set

_READERS = word_set(
    "PIL.Image.open cv2.imread torchvision.io.read_image torchvision.io.decode_image "
    "torchvision.io.decode_jpeg torchvision.io.image.read_image imageio.imread imageio.v2.imread "
    "imageio.v3.imread skimage.io.imread matplotlib.pyplot.imread matplotlib.image.imread "
    "tifffile.imread torchvision.datasets.folder.default_loader "
    "torchvision.datasets.folder.pil_loader cv2.imdecode"
)
_OWN_READERS = frozenset({"loader", "read_image", "load_image", "pil_loader"})
_REPORTING = re.compile(
    r"^(print|log\w*|warn\w*|error|exception|info|debug|critical|write\w*|echo|secho|cprint|exit"
    r"|_exit|abort|fail|put|report\w*|note\w*|record\w*|send|emit)$"
)
_REPORT_KEYS = frozenset({"error", "message", "detail", "reason", "status"})
_KEEPS = frozenset({"append", "add", "extend", "update", "insert", "setdefault"})
_WHY = (
    "A broken or missing image is dropped, or replaced by another, and nothing reports it: "
    "nobody learns how many images were used, or which were not."
)


def _check(context: Context) -> Iterator[Mistake]:
    """Handlers around the reading of an image that do not report the error."""
    for source in context.script.sources:
        for node in source.all(ast.Try):
            reads = _reads(context, node)
            for handler in node.handlers if reads else []:
                if _is_silent(context, source, node, handler, reads[0]):
                    yield _mistake(context, node, handler, reads[0])
                    break


RULE = Rule(
    "swallowed-image",
    "An image that cannot be read is dropped silently",
    _WHY,
    _check,
    r"imread|imdecode|Image\b|_image\(|loader\(|__getitem__\(",
)


def _reads(context: Context, node: ast.Try) -> list[ast.Call]:
    """The calls in a try that read an image."""
    inside = (one for part in node.body for one in (part, *own_nodes(part)))
    return [one for one in inside if isinstance(one, ast.Call) and _is_reader(context, one)]


def _is_reader(context: Context, call: ast.Call, deep: bool = True) -> bool:
    path = context.script.path_of(call.func)
    if path in _READERS:
        return True
    if path and context.script.definition(call.func) is None:
        return False
    name = last_name(call.func)
    if not path and isinstance(call.func, ast.Attribute) and name in _OWN_READERS:
        return True
    if name == "__getitem__" and isinstance(call.func, ast.Attribute):
        return last_name(call.func.value) == "super"
    callee = context.values.callee(call) if deep else None
    if not isinstance(callee, FUNCTIONS) or callee.name == "__getitem__":
        return False
    return any(
        isinstance(one, ast.Call) and _is_reader(context, one, deep=False)
        for one in own_nodes(callee)
    )


def _is_silent(
    context: Context, source: Source, node: ast.Try, handler: ast.ExceptHandler, read: ast.Call
) -> bool:
    if not _catches_reading(handler):
        return False
    inside = [one for part in handler.body for one in (part, *own_nodes(part))]
    if any(isinstance(one, (ast.Raise, ast.Assert, ast.Yield)) for one in inside):
        return False
    names = _identity(context, read) | ({handler.name} if handler.name else set())
    for one in inside:
        if isinstance(one, ast.Call) and (_reports(one) or _keeps(one, names)):
            return False
        if (
            isinstance(one, ast.Call)
            and _is_reader(context, one)
            and last_name(one) != "__getitem__"
        ):
            return False  # another way to read the same image
        if isinstance(one, (ast.Assign, ast.AugAssign)) and _records(context, one, names):
            return False
        if handler.name and isinstance(one, ast.Name) and one.id == handler.name:
            return False  # the error is used somehow, so it is not lost
        if isinstance(one, ast.Return) and _answers(one.value, names):
            return False
        if isinstance(one, ast.Call) and _may_report(context, one):
            return False
    if _is_retried(source, node) or _is_checked_later(context, node, inside):
        return False
    return not (node.finalbody and _raises(node.finalbody))


def _catches_reading(handler: ast.ExceptHandler) -> bool:
    """Whether a handler is for what a broken image raises."""
    kind = handler.type
    names = {last_name(one) for one in ast.walk(kind)} if kind is not None else {"Exception"}
    return bool(
        names
        & {
            "Exception",
            "BaseException",
            "OSError",
            "IOError",
            "EnvironmentError",
            "UnidentifiedImageError",
            "FileNotFoundError",
            "RuntimeError",
            "ValueError",
            "SyntaxError",
        }
    )


def _identity(context: Context, read: ast.Call) -> set[str]:
    """The names that identify an image: its path, and what the path was made of."""
    found: set[str] = set()
    waiting: list[ast.AST] = [*read.args, *(one.value for one in read.keywords)]
    for _ in range(3):
        names = [one for value in waiting for one in ast.walk(value) if isinstance(one, ast.Name)]
        waiting = []
        for name in names:
            if name.id not in found and name.id != "self":
                found.add(name.id)
                bindings = context.script.scope(name).reaching(name)
                waiting += [one.value for one in bindings if one.value is not None]
    return found


def _reports(call: ast.Call) -> bool:
    """Whether a call reports something that differs from image to image."""
    if not _REPORTING.match(last_name(call.func)):
        return False
    if last_name(call.func) in ("exception", "exit", "_exit", "abort"):
        return True
    given = [*call.args, *(one.value for one in call.keywords)]
    return any(isinstance(one, ast.Name) for value in given for one in ast.walk(value))


def _keeps(call: ast.Call, names: set[str]) -> bool:
    """Whether a call puts the image's name on a list."""
    if last_name(call.func) not in _KEEPS:
        return False
    used = {one.id for value in call.args for one in ast.walk(value) if isinstance(one, ast.Name)}
    return bool(used & names)


def _records(context: Context, node: ast.Assign | ast.AugAssign, names: set[str]) -> bool:
    """Whether an assignment keeps the image's name or the error, or counts errors."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.value, ast.Constant) and _is_read(context, node)
    targets = [one for target in node.targets for one in ast.walk(target)]
    used = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
    keyed = {one.id for one in targets if isinstance(one, ast.Name)} & names
    stored = isinstance(node.targets[0], ast.Subscript) and bool(keyed)
    calls = any(isinstance(one, (ast.Call, ast.BinOp)) for one in ast.walk(node.value))
    return stored or (bool(used & names) and not calls)


def _is_read(context: Context, node: ast.AugAssign) -> bool:
    """Whether a counter is read anywhere."""
    key = key_of(node.target)
    return any(
        isinstance(one.ctx, ast.Load) and last_name(one) == last_name(node.target)
        for one in context.script.nodes(ast.Name, ast.Attribute)
        if key
    )


def _answers(value: ast.expr | None, names: set[str]) -> bool:
    """Whether the return value shows the caller which image failed, or that one did."""
    parts = list(ast.walk(value)) if value is not None else []
    if any(isinstance(one, ast.Constant) and " " in str(one.value) for one in parts):
        return True  # a message
    if any(isinstance(one, ast.Dict) for one in parts):
        return any(isinstance(one, ast.Constant) and one.value in _REPORT_KEYS for one in parts)
    if isinstance(value, ast.Constant) and isinstance(value.value, (bool, str)):
        return True
    if value is None or any(isinstance(one, ast.Call) for one in ast.walk(value)):
        return False
    used = {one.id for one in ast.walk(value) if isinstance(one, ast.Name)}
    if isinstance(value, ast.Subscript):
        return False
    return bool(used & names)


def _may_report(context: Context, call: ast.Call) -> bool:
    """Whether a call is of a function in these files that reports something."""
    callee = context.values.callee(call)
    if not isinstance(callee, FUNCTIONS) or callee.name == "__getitem__":
        return False
    return any(isinstance(one, ast.Call) and _reports(one) for one in own_nodes(callee)) or any(
        isinstance(one, ast.Raise) for one in own_nodes(callee)
    )


def _is_retried(source: Source, node: ast.Try) -> bool:
    """Whether the try is one of several attempts that end with an error."""
    for parent in source.ancestors(node):
        if isinstance(parent, FUNCTIONS):
            return False
        if isinstance(parent, (ast.For, ast.While)):
            holder = source.parents[parent]
            later = [
                one
                for one in own_nodes(holder)
                if isinstance(one, ast.Raise) and start_place(one) > start_place(parent)
            ]
            return bool(later) or _raises(parent.orelse)
    return False


def _is_checked_later(context: Context, node: ast.Try, inside: list[ast.AST]) -> bool:
    """Whether the None in place of an image is checked for later, and reported."""
    function = context.script.function(node)
    left = [one.targets[0] for one in inside if isinstance(one, ast.Assign)]
    if any(_is_tested(function, key_of(one)) for one in left):
        return True
    returned = any(isinstance(one, ast.Return) for one in inside)
    if not isinstance(function, FUNCTIONS) or not returned:
        return False
    for call in context.values.call_sites(function):
        statement = context.script.source(call).statement(call)
        key = key_of(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        if _is_tested(context.script.function(call), key):
            return True
    return False


def _is_tested(function: ast.AST, key: str) -> bool:
    """Whether a function tests a value, and reports or records something in one case."""
    for one in own_nodes(function):
        if isinstance(one, ast.If) and key:
            parts = (part for part in ast.walk(one.test) if isinstance(part, ast.expr))
            if key in map(key_of, parts):
                said = [part for step in one.body for part in (step, *own_nodes(step))]
                calls = [part for part in said if isinstance(part, ast.Call)]
                if _raises(one.body) or any(
                    _reports(call) or last_name(call.func) in _KEEPS for call in calls
                ):
                    return True
    return False


def _raises(body: list[ast.stmt]) -> bool:
    return any(isinstance(one, ast.Raise) for part in body for one in (part, *own_nodes(part)))


def _mistake(
    context: Context, node: ast.Try, handler: ast.ExceptHandler, read: ast.Call
) -> Mistake:
    script = context.script
    margin = script.source(node).indentation(node)
    ahead = [part for part in node.body if start_place(part) <= start_place(read)]
    lines = [header(script, part) for part in ahead]
    rest = ["..."] if len(ahead) < len(node.body) else []
    inner = f"\n{margin}    ".join([*lines, *rest])
    kind = script.code(handler.type) if handler.type is not None else "Exception"
    name = handler.name or "error"
    image = script.code(read.args[0]) if read.args else "the image"
    shown = "{" + image.replace('"', "'") + "}" if read.args else image
    text = (
        f"{margin}try:\n{margin}    {inner}\n{margin}except {kind} as {name}:\n"
        f'{margin}    raise RuntimeError(f"cannot read {shown}") from {name}'
    )
    problem = f"an image that cannot be read is silently skipped ({script.code(read.func)})"
    return Mistake(handler, problem, text)
