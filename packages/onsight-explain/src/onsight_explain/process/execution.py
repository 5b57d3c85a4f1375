"""Executes a script in this process as Python would, without changing the user's files."""

import ast
import os
import random
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

import torch

from onsight_explain.errors import ExplainError
from onsight_explain.process.file_guard import FileGuard
from onsight_explain.process.guarded_functions import guard_process
from onsight_explain.script.source import check_still_exists


def prepare(script: Path, args: list[str], folder: Path) -> None:
    """Prepare this process to run a script; copies of files that it changes go to the folder."""
    sys.dont_write_bytecode = True  # add no bytecode to the script's folder
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.parent))  # as `python script.py` does; -P has left it out
    guard_process(FileGuard(folder))


def execute(
    script: Path, rewrite: Callable[[ast.Module], dict[str, object]] = lambda tree: {}
) -> None:
    """Execute a script from its first line to its last, as `__main__`.

    `rewrite` may change the syntax tree before that; it returns names that the script then needs.
    """
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    vars(main).update(__file__=str(script), __builtins__=__builtins__)
    seed_everything(0)
    try:
        check_still_exists(script)
        tree = ast.parse(script.read_bytes(), str(script))
    except (ExplainError, OSError) as error:
        sys.exit(str(error))
    vars(main).update(rewrite(tree))
    exec(compile(tree, str(script), "exec", dont_inherit=True), vars(main))


def seed_everything(seed: int) -> None:
    """Seed the generators of Python and torch, and of NumPy if it is installed."""
    random.seed(seed)
    torch.manual_seed(seed)
    with suppress(ImportError):  # the script may import it later; torch works without it
        import numpy as np

        np.random.seed(seed)


def leave(code: int) -> NoReturn:
    """End the process at once, before the script can save anything."""
    flush_output()
    os._exit(code)


def flush_output() -> None:
    """Flush the script's output before the parent process may kill this process."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the script may have closed it
            stream.flush()


def print_traceback(error: BaseException, script: Path) -> None:
    """Print the traceback from the script's first line on."""
    start: TracebackType | None = error.__traceback__
    while start and start.tb_frame.f_code.co_filename != str(script):
        start = start.tb_next
    lines = traceback.format_exception(type(error), error, start or error.__traceback__)
    print_error("".join(lines))


def print_error(text: str) -> None:
    """Print to stderr, even if the script has replaced it."""
    sys.stderr = sys.__stderr__
    with suppress(OSError, ValueError):  # it may have been closed
        print(text, file=sys.stderr, flush=True)
