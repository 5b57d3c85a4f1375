"""How the process of a script ends: at once, or with the script's own failure."""

import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn

FAILED = 3  # the exit code if the script itself fails


def tell_failure(error: BaseException, script: Path) -> None:
    """Print the traceback from the script's own first line on."""
    where: TracebackType | None = error.__traceback__
    while where and where.tb_frame.f_code.co_filename != str(script):
        where = where.tb_next
    traceback.print_exception(type(error), error, where or error.__traceback__)


def leave(code: int) -> NoReturn:
    """End the process at once, before the script can save anything."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
