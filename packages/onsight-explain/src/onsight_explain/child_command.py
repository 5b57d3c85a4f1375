"""How Onsight starts Python for processes of its own."""

import sys


def child_command(module: str) -> list[str]:
    """The beginning of the command that runs one of Onsight's modules.

    -P: nothing is imported from the working directory, which may be anybody's. It is no variable of
    the environment, which programs that the child starts would inherit.
    """
    return [sys.executable, "-P", "-m", module]
