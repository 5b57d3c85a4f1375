"""OpenMP thread settings that a script or its environment makes before torch is loaded."""

import ast
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch

from onsight_explain.errors import ExplainError
from onsight_explain.script.source import parse_script
from onsight_explain.script.trace import ThreadSetting
from onsight_explain.threads import (
    POLICY_VARIABLE,
    THREAD_VARIABLES,
    chosen_spinning,
    thread_variables_set_by_user,
)
from onsight_explain.tracing.patches import Patches
from onsight_explain.tracing.sites import Site

UNSET = "\0"  # a value that no variable can have: remove the variable from the environment
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


def read_settings(script: Path, environment: Mapping[str, str]) -> list[ThreadSetting]:
    """Return the settings in the script in order of line, then the environment's."""
    own = settings_in(parse_script(script), script)
    names = {setting.name for setting in own}
    return own + [
        ThreadSetting(name=name, value=value, site=None)
        for name, value in thread_variables_set_by_user(environment).items()
        if name not in names
    ]


def settings_in(tree: ast.Module, script: Path) -> list[ThreadSetting]:
    """Return constants put into os.environ before torch is imported, and bindings to cores."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.Call)]
    torch_line = _torch_line(tree)
    return [
        ThreadSetting(name=name, value=value, site=Site(file=str(script), line=node.lineno))
        for node in sorted(nodes, key=lambda node: node.lineno)
        for name, value in _settings(node)
        if name == AFFINITY or (name in THREAD_VARIABLES and node.lineno < torch_line)
    ]


def read_variables(script: Path) -> dict[str, str]:
    """Return the variables that the script sets, for a process that loads torch before it does."""
    try:
        tree = parse_script(script)
    except ExplainError:  # running the script reports this
        return {}
    settings = settings_in(tree, script)
    return {setting.name: setting.value for setting in settings if setting.name != AFFINITY}


def script_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with these variables, for a process that runs the script.

    On a busy machine, threads that spin for long wait for cores that other work has, which may make
    a step fifty times as long and hide everything else. So what `choose_spinning` has set applies
    to the script as well, unless the script sets a variable of the same purpose.
    """
    environment = dict(os.environ)
    if variables.get(POLICY_VARIABLE, UNSET) != UNSET:
        for name in chosen_spinning(environment):
            del environment[name]
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # write nothing into the script's folder
    environment |= variables
    return {name: value for name, value in environment.items() if value != UNSET}


def script_spinning(script: Path) -> str:
    """Return what `choose_spinning` has set for the script's threads, or "" if it is nothing."""
    environment = script_environment(read_variables(script))
    settings = chosen_spinning(environment)
    return "".join(f"{name}={value}" for name, value in settings.items())


def without_settings(tree: ast.Module) -> dict[str, object]:
    """Remove the statements that set variables from a script's tree; no names are needed."""

    class RemoveSettings(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> ast.stmt:
            return ast.copy_location(ast.Pass(), node) if _sets_variable(node) else node

        def visit_Expr(self, node: ast.Expr) -> ast.stmt:
            call = node.value
            is_setting = isinstance(call, ast.Call) and _sets_variable(call)
            return ast.copy_location(ast.Pass(), node) if is_setting else node

    RemoveSettings().visit(tree)
    return {}


def follow_affinity(tree: ast.Module, patches: Patches) -> None:
    """Limit torch's threads to the cores that a script binds itself to before importing torch.

    OpenMP counts the cores when it is loaded, which here is before the script runs.
    """
    settings = settings_in(tree, Path())
    bindings = [setting.site for setting in settings if setting.name == AFFINITY]
    if not any(site and site.line < _torch_line(tree) for site in bindings):
        return
    original: Callable[..., None] = os.sched_setaffinity

    def bind(process: int, cores: Any) -> None:
        original(process, cores)
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(min(torch.get_num_threads(), len(os.sched_getaffinity(0))))

    patches.put(os, "sched_setaffinity", bind)


def _sets_variable(node: ast.Assign | ast.Call) -> bool:
    return any(name in THREAD_VARIABLES for name, _ in _settings(node))


def _torch_line(tree: ast.Module) -> int:
    """Return the first line that loads torch; 0 if there is none."""
    return min((node.lineno for node in ast.walk(tree) if _loads_torch(node)), default=0)


def _loads_torch(node: ast.AST) -> TypeGuard[ast.Import | ast.ImportFrom]:
    match node:
        case ast.Import(names=aliases):
            return any(alias.name.partition(".")[0] in _LOADS_TORCH for alias in aliases)
        case ast.ImportFrom(module=str(module), level=0):
            return module.partition(".")[0] in _LOADS_TORCH
    return False


def _settings(node: ast.Assign | ast.Call) -> Iterator[tuple[str, str]]:
    """Yield the names and values that a statement or call sets."""
    match node:
        case ast.Assign(
            targets=[ast.Subscript(value=owner, slice=ast.Constant(value=str(name)))],
            value=ast.Constant(value=str(value)),
        ) if _is_environ(owner):
            yield name, value
        case ast.Call(
            func=ast.Attribute(value=owner, attr="setdefault"),
            args=[ast.Constant(value=str(name)), ast.Constant(value=str(value))],
        ) if _is_environ(owner) and name not in os.environ:
            yield name, value
        case ast.Call(
            func=ast.Attribute(value=owner, attr="update"), args=[ast.Dict() as pairs]
        ) if _is_environ(owner):
            for key_node, value_node in zip(pairs.keys, pairs.values, strict=True):
                match key_node, value_node:
                    case ast.Constant(value=str(name)), ast.Constant(value=str(value)):
                        yield name, value
        case ast.Call(func=ast.Attribute(attr="sched_setaffinity"), args=[_, cores]):
            yield AFFINITY, ast.unparse(cores)


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")
