"""Executes a script, or a notebook's cells, as Python would, in a `__main__` of its own."""

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from onsight.explainer.script.ending import show_in_tracebacks
from onsight.explainer.script.notebook import SUFFIX, units_of
from onsight.explainer.script.seeding import seed_everything
from onsight.explainer.script.stand_ins import stand_ins


def execute(script: Path, rewrite: Callable[[ast.Module], dict[str, object]]) -> None:
    """Execute a script from its first line to its last.

    rewrite: may change the syntax tree of each part before that; returns names that it needs then.
    """
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    if script.suffix == SUFFIX:
        os.chdir(script.parent)  # as Jupyter does
        os.environ["MPLBACKEND"] = "agg"  # its pictures are not shown
        vars(main).update(stand_ins())
    else:
        vars(main).update(__file__=str(script))
    vars(main).update(__builtins__=__builtins__)
    seed_everything(0)
    for one in units_of(script):
        tree = ast.parse(one.text, one.name)
        vars(main).update(rewrite(tree))
        show_in_tracebacks(one)
        exec(compile(tree, one.name, "exec", dont_inherit=True), vars(main))
