"""Rule on images that cannot be read and are silently skipped."""

import ast
import re
from collections.abc import Iterator, Sequence

from onsight_lint.edits import statement_head
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import (
    FUNCTIONS,
    argument_values,
    block_nodes,
    expressions_in,
    key_of,
    last_name,
    names_in,
    own_nodes,
    start_position,
    word_set,
)

_READERS = word_set(
    "PIL.Image.open cv2.imread torchvision.io.read_image torchvision.io.decode_image "
    "torchvision.io.decode_jpeg torchvision.io.image.read_image imageio.imread imageio.v2.imread "
    "imageio.v3.imread skimage.io.imread matplotlib.pyplot.imread matplotlib.image.imread "
    "tifffile.imread torchvision.datasets.folder.default_loader "
    "torchvision.datasets.folder.pil_loader cv2.imdecode"
)
_OWN_READERS = frozenset({"loader", "read_image", "load_image", "pil_loader"})
_READ_EXCEPTIONS = word_set(  # names of the exceptions that reading a broken image raises
    "Exception BaseException OSError IOError EnvironmentError UnidentifiedImageError "
    "FileNotFoundError RuntimeError ValueError SyntaxError"
)
_REPORTING_NAME = re.compile(
    r"^(print|log\w*|warn\w*|error|exception|info|debug|critical|write\w*|echo|secho|cprint|exit"
    r"|_exit|abort|fail|put|report\w*|note\w*|record\w*|send|emit)$"
)
_COMPLETE_REPORTS = ("exception", "exit", "_exit", "abort")  # whatever is passed to them
_REPORT_KEYS = frozenset({"error", "message", "detail", "reason", "status"})
_COLLECTING = frozenset({"append", "add", "extend", "update", "insert", "setdefault"})


def _check(context: Context) -> Iterator[Mistake]:
    """Handlers around the reading of an image that do not report the error."""
    for node in context.script.nodes(ast.Try):
        calls = [part for part in block_nodes(node.body) if isinstance(part, ast.Call)]
        reads = [call for call in calls if _is_reader(context, call)]
        for handler in node.handlers if reads else []:
            if _is_silent(context, node, handler, reads[0]):
                yield _mistake(context, node, handler, reads[0])
                break


RULE = Rule(
    id="swallowed-image",
    title="An image that cannot be read is dropped silently",
    why=(
        "A broken or missing image is dropped, or replaced with another, without any report: you "
        "cannot tell how many images were used, or which ones were not."
    ),
    check=_check,
    pattern=r"imread|imdecode|Image\b|_image\(|loader\(|__getitem__\(",
)


def _is_reader(context: Context, call: ast.Call, deep: bool = True) -> bool:
    """Return whether a call reads an image, itself or (deep) in a function of the script."""
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
        isinstance(node, ast.Call) and _is_reader(context, node, deep=False)
        for node in own_nodes(callee)
    )


def _is_silent(context: Context, node: ast.Try, handler: ast.ExceptHandler, read: ast.Call) -> bool:
    """Return whether a handler neither reports nor records an image that cannot be read."""
    if not _catches_read_errors(handler):
        return False
    inside = list(block_nodes(handler.body))
    if any(isinstance(part, (ast.Raise, ast.Assert, ast.Yield)) for part in inside):
        return False
    names = _identifying_names(context, read) | ({handler.name} if handler.name else set())
    if any(_handles_error(context, part, names, handler.name) for part in inside):
        return False
    is_checked = _is_retried(context, node) or _is_checked_later(context, node, inside)
    return not (is_checked or _raises(node.finalbody))


def _catches_read_errors(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    return caught is None or any(last_name(part) in _READ_EXCEPTIONS for part in ast.walk(caught))


def _identifying_names(context: Context, read: ast.Call) -> set[str]:
    """The names that identify an image: its path, and the values that the path was made from."""
    names: set[str] = set()
    waiting: list[ast.AST] = [*argument_values(read)]
    for _ in range(3):
        parts = [part for value in waiting for part in ast.walk(value)]
        waiting = []
        for part in parts:
            if isinstance(part, ast.Name) and part.id not in names and part.id != "self":
                names.add(part.id)
                bindings = context.script.scope(part).reaching(part)
                waiting += [binding.value for binding in bindings if binding.value is not None]
    return names


def _handles_error(context: Context, part: ast.AST, names: set[str], error: str | None) -> bool:
    """Return whether part of a handler reports or records the error or the image."""
    match part:
        case ast.Call():
            is_other_reader = _is_reader(context, part) and last_name(part) != "__getitem__"
            return (
                _reports(part)
                or _collects(part, names)
                or is_other_reader  # another way to read the same image
                or _may_report(context, part)
            )
        case ast.Assign() | ast.AugAssign():
            return _records(context, part, names)
        case ast.Name(id=name):
            return name == error
        case ast.Return(value=value):
            return _answers(value, names)
    return False


def _reports(call: ast.Call) -> bool:
    """Return whether a call reports something that differs from image to image."""
    name = last_name(call.func)
    if not _REPORTING_NAME.match(name):
        return False
    return name in _COMPLETE_REPORTS or bool(names_in(*argument_values(call)))


def _collects(call: ast.Call, names: set[str]) -> bool:
    """Return whether a call puts the image's name on a list."""
    return last_name(call.func) in _COLLECTING and bool(names_in(*call.args) & names)


def _may_report(context: Context, call: ast.Call) -> bool:
    """Return whether a call reaches a function of the script that reports something."""
    callee = context.values.callee(call)
    if not isinstance(callee, FUNCTIONS) or callee.name == "__getitem__":
        return False
    return any(
        isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _reports(node))
        for node in own_nodes(callee)
    )


def _records(context: Context, node: ast.Assign | ast.AugAssign, names: set[str]) -> bool:
    """Return whether an assignment keeps the image's name or the error, or counts errors."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.value, ast.Constant) and _is_read_anywhere(context, node)
    is_keyed_by_image = bool(names_in(*node.targets) & names)
    if isinstance(node.targets[0], ast.Subscript) and is_keyed_by_image:
        return True
    is_computed = any(isinstance(part, (ast.Call, ast.BinOp)) for part in ast.walk(node.value))
    return bool(names_in(node.value) & names) and not is_computed


def _is_read_anywhere(context: Context, node: ast.AugAssign) -> bool:
    """Return whether a counter is read anywhere."""
    return bool(key_of(node.target)) and any(
        isinstance(name.ctx, ast.Load) and last_name(name) == last_name(node.target)
        for name in context.script.nodes(ast.Name, ast.Attribute)
    )


def _answers(value: ast.expr | None, names: set[str]) -> bool:
    """Return whether the return value tells the caller that an image failed."""
    parts = list(ast.walk(value)) if value is not None else []
    constants = [part.value for part in parts if isinstance(part, ast.Constant)]
    if any(" " in str(constant) for constant in constants):
        return True  # a message
    if any(isinstance(part, ast.Dict) for part in parts):
        return any(constant in _REPORT_KEYS for constant in constants)
    if isinstance(value, ast.Constant) and isinstance(value.value, (bool, str)):
        return True
    if value is None or any(isinstance(part, ast.Call) for part in parts):
        return False
    return not isinstance(value, ast.Subscript) and bool(names_in(value) & names)


def _is_retried(context: Context, node: ast.Try) -> bool:
    """Return whether the try is one of several attempts that end with an error."""
    loop = next(context.script.loops_around(node), None)
    return loop is not None and (
        _raises(loop.orelse)
        or any(
            isinstance(part, ast.Raise) and start_position(part) > start_position(loop)
            for part in own_nodes(context.script.parent(loop))
        )
    )


def _is_checked_later(context: Context, node: ast.Try, inside: Sequence[ast.AST]) -> bool:
    """Return whether the None in place of an image is checked for later, and reported."""
    function = context.script.function(node)
    targets = [part.targets[0] for part in inside if isinstance(part, ast.Assign)]
    if any(_is_tested(function, key_of(target)) for target in targets):
        return True
    returns = any(isinstance(part, ast.Return) for part in inside)
    if not isinstance(function, FUNCTIONS) or not returns:
        return False
    for call in context.values.call_sites(function):
        statement = context.script.statement(call)
        key = key_of(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        if _is_tested(context.script.function(call), key):
            return True
    return False


def _is_tested(function: ast.AST, key: str) -> bool:
    """Return whether a function tests a value, and reports or records something in one case."""
    for node in own_nodes(function):
        if isinstance(node, ast.If) and key and key in map(key_of, expressions_in(node.test)):
            calls = [part for part in block_nodes(node.body) if isinstance(part, ast.Call)]
            is_reported = any(
                _reports(call) or last_name(call.func) in _COLLECTING for call in calls
            )
            if is_reported or _raises(node.body):
                return True
    return False


def _raises(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Raise) for node in block_nodes(body))


def _mistake(
    context: Context, node: ast.Try, handler: ast.ExceptHandler, read: ast.Call
) -> Mistake:
    script = context.script
    margin = script.source(node).indentation(node)
    before = [part for part in node.body if start_position(part) <= start_position(read)]
    lines = [statement_head(script, part) for part in before]
    rest = ["..."] if len(before) < len(node.body) else []
    inner = f"\n{margin}    ".join([*lines, *rest])
    caught = script.code(handler.type) if handler.type is not None else "Exception"
    error = handler.name or "error"
    image = "the image"
    if read.args:
        image = "{" + script.code(read.args[0]).replace('"', "'") + "}"
    fixed = (
        f"{margin}try:\n{margin}    {inner}\n{margin}except {caught} as {error}:\n"
        f'{margin}    raise RuntimeError(f"cannot read {image}") from {error}'
    )
    problem = f"an image that cannot be read is silently skipped ({script.code(read.func)})"
    return Mistake(handler, problem, fixed)
