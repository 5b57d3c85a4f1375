"""Executes a script as Python would, in a `__main__` of its own, and keeps the user's files."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from onsight_explain.process.file_guard import FileGuard
from onsight_explain.process.guarding import guard_process
from onsight_explain.script.seeding import seed_everything


def prepare(script: Path, args: list[str], folder: Path) -> None:
    """Let this process be one that runs a script. folder: for copies of files that it changes."""
    sys.dont_write_bytecode = True  # writes nothing into the script's folder
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.parent))  # as `python script.py` does; -P has put nothing there
    guard_process(FileGuard(folder))


def execute(
    script: Path, rewrite: Callable[[ast.Module], dict[str, object]] = lambda tree: {}
) -> None:
    """Execute a script from its first line to its last.

    rewrite: may change the syntax tree before that; returns names that it needs then.
    """
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    vars(main).update(__file__=str(script), __builtins__=__builtins__)
    seed_everything(0)
    tree = ast.parse(script.read_bytes(), str(script))
    vars(main).update(rewrite(tree))
    exec(compile(tree, str(script), "exec", dont_inherit=True), vars(main))
