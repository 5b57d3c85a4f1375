"""Whether a child process can be spawned, as data workers are on most systems."""

import multiprocessing
import time
from multiprocessing.connection import Connection

from onsight.doctor.line import Line

_DEADLINE_SECONDS = 30.0
_ANSWER = "here"


def check_spawn(deadline_seconds: float = _DEADLINE_SECONDS) -> Line:
    """Spawn a child, which imports this module and answers through a pipe."""
    default = multiprocessing.get_all_start_methods()[0]
    figures: dict[str, object] = {"default_method": default}
    start = time.perf_counter()
    answer = _ask_child(deadline_seconds)
    seconds = time.perf_counter() - start
    if answer == _ANSWER:
        return Line(
            "ok",
            f"A child process starts and answers in {seconds:.2f} s (by spawn; the default here "
            f"is {default}).",
            figures=figures | {"seconds": seconds},
        )
    return Line(
        "problem",
        f"A child process {answer}: data workers and ranks would not start either.",
        "Check that Python itself starts, and whether the number of processes is limited "
        "(ulimit -u).\npython -c 'import onsight; print(onsight.__file__)'",
        figures,
    )


def _ask_child(deadline_seconds: float) -> str:
    """The child's answer, or what became of it, in words that follow 'A child process'."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender,), daemon=True)
    try:
        child.start()
        sender.close()
        if not receiver.poll(deadline_seconds):
            return f"gave no answer within {deadline_seconds:g} s"
        return str(receiver.recv())
    except OSError as error:  # the limit on processes is reached
        return f"could not be started: {error.strerror or error}"
    except EOFError:
        child.join()
        return f"ended with exit code {child.exitcode} before it answered"
    finally:
        receiver.close()
        if child.pid:
            child.kill()
            child.join()
            child.close()


def _answer(sender: Connection) -> None:
    sender.send(_ANSWER)
