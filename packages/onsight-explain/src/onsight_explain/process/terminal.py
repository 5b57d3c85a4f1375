"""A terminal as a script's standard input, at which nobody ever types anything."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unattended_terminal() -> Iterator[int]:
    """A descriptor that is a terminal of the user's size; reading it finds its end at once.

    Many scripts ask their terminal for its width (`stty size`), and fail where the input is none.
    It controls no session, so that /dev/tty is absent. Where a system has no such terminals, the
    input is empty.
    """
    if sys.platform == "win32":
        descriptors = [os.open(os.devnull, os.O_RDONLY)]
    else:
        descriptors = _pair()
    try:
        yield descriptors[0]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _pair() -> list[int]:
    """The script's end and ours, which must stay open for it to remain a terminal."""
    import termios

    try:
        ours, theirs = os.openpty()
    except OSError:  # none are left, or none are mounted
        return [os.open(os.devnull, os.O_RDONLY)]
    size = shutil.get_terminal_size()
    termios.tcsetwinsize(theirs, (size.lines, size.columns))
    mode = termios.tcgetattr(theirs)
    local, characters = 3, 6
    mode[local] &= ~(termios.ICANON | termios.ECHO)
    # A read returns at once what was typed, which is nothing: to the reader, the end of the file.
    mode[characters][termios.VMIN] = mode[characters][termios.VTIME] = 0
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    return [theirs, ours]
