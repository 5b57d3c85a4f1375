"""One run of a sweep in a separate process: a request on stdin, the answer as a line on stdout.

stdin stays open as long as the parent lives; when it closes, the run stops with a checkpoint.
"""

import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

from onsight.errors import OnsightError


def main() -> None:
    """Train the run that a line of JSON on stdin describes: data, out, fields, ..."""
    request: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    answer_file = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # send all other output to stderr, so that stdout has only the answer
    answer: dict[str, Any] = {}
    try:
        _train(request)
    except OnsightError as error:
        answer = {"error": str(error), "exit_code": error.exit_code}
    except KeyboardInterrupt:
        answer = {"error": "interrupted", "exit_code": 128 + signal.SIGINT}
    except Exception as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}", "exit_code": 1}
    print(json.dumps(answer), file=answer_file, flush=True)


def _train(request: dict[str, Any]) -> None:
    from onsight_explain.python_process import seconds_since_start
    from onsight_explain.threads import choose_spinning

    choose_spinning()  # before torch loads
    from onsight.report.console import BarReporter, Reporter
    from onsight.training.run import train

    fields = request.pop("fields")
    reporter = Reporter(verbose=True) if request.pop("verbose") else BarReporter()
    train(**request, **fields, reporter=reporter, spent=seconds_since_start)


def _stop_with_parent() -> None:
    # Read the descriptor itself: a thread that waits in sys.stdin would delay the exit.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
