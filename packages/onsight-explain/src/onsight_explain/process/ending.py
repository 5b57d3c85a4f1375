"""How the process of a script ends: at once, or with the script's own failure."""

import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

FAILED = 3  # the exit code if the script itself fails


def tell_failure(error: BaseException, script: Path) -> None:
    """Print the traceback from the script's own first line on."""
    where: TracebackType | None = error.__traceback__
    while where and where.tb_frame.f_code.co_filename != str(script):
        where = where.tb_next
    lines = traceback.format_exception(type(error), error, where or error.__traceback__)
    say("".join(lines))


def say(words: str) -> None:
    """Print to stderr, even if the script has replaced it."""
    sys.stderr = sys.__stderr__
    with suppress(OSError, ValueError):  # it may have been closed
        print(words, file=sys.stderr, flush=True)


def leave(code: int) -> NoReturn:
    """End the process at once, before the script can save anything."""
    flush_output()
    os._exit(code)


def flush_output() -> None:
    """Let out what the script has printed, before whoever hears of its end can kill it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the script may have closed it
            stream.flush()


def exit_words(code: object) -> str:
    """What a script said by ending itself."""
    return code if isinstance(code, str) else f"The script ended itself by sys.exit({code!r})"
