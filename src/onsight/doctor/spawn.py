"""Whether a child process can be spawned, as ranks are, and data workers on most systems."""

import multiprocessing
import subprocess
import time

from onsight.doctor.line import Line
from onsight_explain.child_command import child_command

_DEADLINE_SECONDS = 30.0


def check_spawn(deadline_seconds: float = _DEADLINE_SECONDS) -> Line:
    """Spawn a child, which imports this module and ends."""
    default = multiprocessing.get_all_start_methods()[0]
    figures: dict[str, object] = {"default_method": default}
    start = time.perf_counter()
    problem = _spawn(deadline_seconds)
    seconds = time.perf_counter() - start
    if not problem:
        return Line(
            "ok",
            f"A child process starts and ends in {seconds:.2f} s (by spawn; the default here "
            f"is {default}).",
            figures=figures | {"seconds": seconds},
        )
    return Line(
        "problem",
        f"A child process {problem}: data workers and ranks would not start either.",
        "Check that Python itself starts, and whether the number of processes is limited "
        "(ulimit -u).\npython -c 'import onsight; print(onsight.__file__)'",
        figures,
    )


def _spawn(deadline_seconds: float) -> str:
    """What went wrong, in words that follow 'A child process', or ""."""
    try:
        done = subprocess.run(
            child_command(__name__),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"gave no answer within {deadline_seconds:g} s"
    except OSError as error:  # the limit on processes is reached
        return f"could not be started: {error.strerror or error}"
    return f"ended with exit code {done.returncode}" if done.returncode else ""
