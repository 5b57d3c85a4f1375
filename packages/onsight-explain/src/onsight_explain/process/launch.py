"""Starts a process that runs a script, limits its time, and ends everything it started."""

import os
import subprocess
from pathlib import Path

from onsight_explain.child_command import child_command
from onsight_explain.process.leftovers import end_group, end_marked, new_mark
from onsight_explain.process.terminal import unattended_terminal
from onsight_explain.script.thread_settings import UNSET
from onsight_explain.spinning import SHORT_SPIN, SPIN_VARIABLE

GRACE_SECONDS = 15.0  # after the time at which the process should end by itself
_SHOWN_BYTES = 4000  # of the end of a failed script's output


def run_child(
    module: str, asked: Path, said: Path, limit_seconds: float, environment: dict[str, str]
) -> int | None:
    """Run a module that reads its request from a file; its exit code, or None if it was killed.

    said: where its output goes; limit_seconds: at which it should end by itself.
    """
    mark = new_mark()
    with said.open("wb") as out, unattended_terminal() as terminal:
        process = subprocess.Popen(
            [*child_command(module), str(asked)],
            env=environment | mark,
            stdin=terminal,
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
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # nothing is written into the script's folder
    environment |= variables
    return {name: text for name, text in environment.items() if text != UNSET}


def last_words(said: Path) -> str:
    """The end of what a script has printed."""
    if not said.exists():
        return ""
    with said.open("rb") as file:
        file.seek(max(0, said.stat().st_size - _SHOWN_BYTES))
        return file.read().decode(errors="replace").strip()
