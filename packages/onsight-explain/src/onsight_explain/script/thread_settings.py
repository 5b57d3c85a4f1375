"""Settings of OpenMP's threads, which a script or its environment makes before torch is loaded."""

import ast
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch

from onsight_explain.errors import ExplainError
from onsight_explain.script.reading import parse_script
from onsight_explain.script.trace import ThreadSetting
from onsight_explain.thread_variables import VARIABLES, set_by_user
from onsight_explain.tracing.patches import Patches
from onsight_explain.tracing.sites import Site

UNSET = "\0"  # a value that no variable can have: it is to be taken out of the environment
AFFINITY = "os.sched_setaffinity"

# Importing one of these loads torch, and with it OpenMP, which then reads its variables.
_LOADS_TORCH = {
    "torch",
    "torchvision",
    "torchmetrics",
    "timm",
    "lightning",
    "pytorch_lightning",
    "fastai",
    "accelerate",
    "transformers",
    "kornia",
}


def settings_of(script: Path, environment: Mapping[str, str]) -> list[ThreadSetting]:
    """What a script sets itself in time, in order of its lines, and then its environment."""
    own = settings_in(parse_script(script), script)
    names = {one.name for one in own}
    return own + [
        ThreadSetting(name=name, value=value, site=None)
        for name, value in set_by_user(environment).items()
        if name not in names
    ]


def settings_in(tree: ast.Module, script: Path) -> list[ThreadSetting]:
    """Constants that a script puts into os.environ before torch, and cores it binds itself to."""
    nodes = [one for one in ast.walk(tree) if isinstance(one, ast.Assign | ast.Call)]
    until = _torch_line(tree)
    return [
        ThreadSetting(name=name, value=value, site=Site(file=str(script), line=node.lineno))
        for node in sorted(nodes, key=lambda one: one.lineno)
        for name, value in _made(node)
        if name == AFFINITY or (name in VARIABLES and node.lineno < until)
    ]


def variables_of(script: Path) -> dict[str, str]:
    """The variables that torch must find if it is loaded before the script sets them itself."""
    try:
        tree = parse_script(script)
    except ExplainError:  # the script fails by itself, and says so
        return {}
    found = settings_in(tree, script)
    return {one.name: one.value for one in found if one.name != AFFINITY}


def without_settings(tree: ast.Module) -> dict[str, object]:
    """Take the statements that set variables out of a script's tree; it needs no names for that."""

    class Drop(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> ast.stmt:
            return ast.copy_location(ast.Pass(), node) if _sets(node) else node

        def visit_Expr(self, node: ast.Expr) -> ast.stmt:
            call = node.value
            is_setting = isinstance(call, ast.Call) and _sets(call)
            return ast.copy_location(ast.Pass(), node) if is_setting else node

    Drop().visit(tree)
    return {}


def _sets(node: ast.Assign | ast.Call) -> bool:
    return any(name in VARIABLES for name, _ in _made(node))


def follow_affinity(tree: ast.Module, patches: Patches) -> None:
    """Let torch have no more threads than the cores that a script binds itself to before torch.

    OpenMP counts the cores when it is loaded, which here is before the script runs.
    """
    bindings = [one.site for one in settings_in(tree, Path()) if one.name == AFFINITY]
    if not any(site and site.line < _torch_line(tree) for site in bindings):
        return
    original: Callable[..., None] = os.sched_setaffinity

    def bind(process: int, cores: Any) -> None:
        original(process, cores)
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(min(torch.get_num_threads(), len(os.sched_getaffinity(0))))

    patches.put(os, "sched_setaffinity", bind)


def _torch_line(tree: ast.Module) -> int:
    """The first line that loads torch; 0 if there is none."""
    return min((one.lineno for one in ast.walk(tree) if _loads_torch(one)), default=0)


def _loads_torch(node: ast.AST) -> TypeGuard[ast.Import | ast.ImportFrom]:
    match node:
        case ast.Import(names=names):
            return any(one.name.partition(".")[0] in _LOADS_TORCH for one in names)
        case ast.ImportFrom(module=str(module), level=0):
            return module.partition(".")[0] in _LOADS_TORCH
    return False


def _made(node: ast.Assign | ast.Call) -> Iterator[tuple[str, str]]:
    """Names and values that a statement or call sets."""
    match node:
        case ast.Assign(
            targets=[ast.Subscript(value=where, slice=ast.Constant(value=str(name)))],
            value=ast.Constant(value=str(value)),
        ) if _is_environ(where):
            yield name, value
        case ast.Call(
            func=ast.Attribute(value=where, attr="setdefault"),
            args=[ast.Constant(value=str(name)), ast.Constant(value=str(value))],
        ) if _is_environ(where) and name not in os.environ:
            yield name, value
        case ast.Call(
            func=ast.Attribute(value=where, attr="update"), args=[ast.Dict() as pairs]
        ) if _is_environ(where):
            for key, one in zip(pairs.keys, pairs.values, strict=True):
                match key, one:
                    case ast.Constant(value=str(name)), ast.Constant(value=str(value)):
                        yield name, value
        case ast.Call(func=ast.Attribute(attr="sched_setaffinity"), args=[_, cores]):
            yield AFFINITY, ast.unparse(cores)


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")
