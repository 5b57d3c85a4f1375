"""Executes a script as Python would, in a `__main__` of its own."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from onsight.explainer.script.seeding import seed_everything


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
