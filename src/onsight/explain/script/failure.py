"""What a script's own failure looks like to the process that started it."""

import traceback
from pathlib import Path
from types import TracebackType

FAILED = 3  # the exit code if the script itself fails


def tell_failure(error: BaseException, script: Path) -> None:
    """Print the traceback from the script's own first line on."""
    where: TracebackType | None = error.__traceback__
    while where and where.tb_frame.f_code.co_filename != str(script):
        where = where.tb_next
    traceback.print_exception(type(error), error, where or error.__traceback__)
