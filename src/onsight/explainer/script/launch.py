"""Starts the process that runs a script, limits its time, and ends everything it started."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from onsight.errors import ScriptFailed
from onsight.explainer.script.leftovers import end_group, end_marked, new_mark
from onsight.explainer.script.thread_settings import UNSET, variables_of
from onsight.explainer.script.trace import Request, Trace
from onsight.explainer.what_ifs.what_if import WhatIf
from onsight.hardware.spinning import SHORT_SPIN, SPIN_VARIABLE

GRACE_SECONDS = 15.0  # after the time at which the process should end by itself
_CHILD = "onsight.explainer.script.child"
_SHOWN = 4000  # last characters of a failed script's output


class Launcher:
    """Runs one script several times, each time in a fresh process.

    seconds, steps: to measure in each run, at most; limit_seconds: for each run, from its start.
    """

    def __init__(
        self, script: Path, args: list[str], seconds: float, steps: int, limit_seconds: float
    ) -> None:
        self.script, self.args = script.resolve(), args
        self.seconds, self.steps, self.limit_seconds = seconds, steps, limit_seconds

    def run(self, what_ifs: Sequence[WhatIf] = (), is_full: bool = False) -> Trace:
        """The trace of a run with these changes. Raises ScriptFailed."""
        with tempfile.TemporaryDirectory(prefix="onsight-explain-") as folder:
            request = Request(
                script=self.script,
                args=self.args,
                seconds=self.seconds,
                steps=self.steps,
                limit_seconds=self.limit_seconds,
                out=Path(folder) / "trace.json",
                changes={one.name: one.value for one in what_ifs},
                is_full=is_full,
            )
            asked, said = Path(folder) / "request.json", Path(folder) / "said.txt"
            asked.write_text(request.model_dump_json(), encoding="utf-8")
            variables = variables_of(self.script)
            variables |= {name: text for one in what_ifs for name, text in one.environment.items()}
            code = run_child(_CHILD, asked, said, self.limit_seconds, environment_for(variables))
            if request.out.exists():
                return Trace.model_validate_json(request.out.read_text(encoding="utf-8"))
            words = last_words(said)
        raise ScriptFailed(words or f"the script's process ended with {ending(code)}")


def run_child(
    module: str, asked: Path, said: Path, limit_seconds: float, environment: dict[str, str]
) -> int | None:
    """Run a module that reads its request from a file; its exit code, or None if it was killed.

    said: where its output goes; limit_seconds: at which it should end by itself.
    """
    mark = new_mark()
    with said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(asked)],
            env=environment | mark,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that all its children can be killed with it
        )
        try:
            return process.wait(limit_seconds + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_group(process.pid)
            process.wait()
            end_marked(mark)


def environment_for(variables: dict[str, str]) -> dict[str, str]:
    """The user's own and these, without what Onsight's command line sets for itself."""
    environment = dict(os.environ)
    if environment.get(SPIN_VARIABLE) == SHORT_SPIN:
        del environment[SPIN_VARIABLE]
    environment |= variables
    return {name: text for name, text in environment.items() if text != UNSET}


def last_words(said: Path) -> str:
    """The end of what a script has printed."""
    if not said.exists():
        return ""
    return said.read_text(encoding="utf-8", errors="replace")[-_SHOWN:].strip()


def ending(code: int | None) -> str:
    """How a child process ended, in words."""
    if code is None:
        return "no answer in time"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
